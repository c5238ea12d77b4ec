-- What leads ended as, told again after their agents spoke. When they ended stays.
UPDATE leads AS l
SET outcome = f.outcome, outcome_reason = f.reason, version = version + 1, updated_at = clock_timestamp()
FROM unnest($1::uuid[], $2::text[], $3::text[]) AS f (id, outcome, reason)
WHERE l.id = f.id AND l.status = 'FINISHED'
