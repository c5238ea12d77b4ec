-- Keeps new calls away for so many seconds; 0 lets them come again.
UPDATE pods SET draining_until = CASE WHEN $2::float8 > 0 THEN clock_timestamp() + make_interval(secs => $2) END WHERE name = $1
