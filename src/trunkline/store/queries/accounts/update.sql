-- Change what was named. The flags say whether a value that may be null was given.
UPDATE carrier_accounts SET
    credentials  = coalesce($2, credentials),
    base_url     = CASE WHEN $3 THEN $4 ELSE base_url END,
    starts_per_s = CASE WHEN $5 THEN $6 ELSE starts_per_s END,
    status       = coalesce($7, status),
    version      = version + 1,
    updated_at   = clock_timestamp()
WHERE id = $1
RETURNING *
