-- The end of leads. Guarded by status: a lead ends once.
UPDATE leads AS l
SET status = 'FINISHED', outcome = f.outcome, outcome_reason = f.reason, version = version + 1,
    finished_at = clock_timestamp(), updated_at = clock_timestamp()
FROM unnest($1::uuid[], $2::text[], $3::text[]) AS f (id, outcome, reason)
WHERE l.id = f.id AND l.status = 'PROCESSING'
RETURNING l.id
