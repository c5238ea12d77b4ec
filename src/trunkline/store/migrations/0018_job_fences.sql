-- Fences are moments now, counted up per row. A sequence can go back with a claim that is lost when the server crashes,
-- and would give its number to somebody else.
DROP SEQUENCE job_fences;
