-- Claim leads for asking: nobody else asks about them meanwhile, in this process or another. A claim that outlives its
-- process ends by itself. $1 leads  $2 which checks  $3 for how many seconds
INSERT INTO prechecks AS p (lead_id, checks_hash, claimed_until)
SELECT c.lead_id, c.checks_hash, clock_timestamp() + make_interval(secs => c.lease_s)
FROM unnest($1::uuid[], $2::bytea[], $3::float8[]) AS c (lead_id, checks_hash, lease_s)
ORDER BY c.lead_id
ON CONFLICT (lead_id) DO UPDATE
SET claimed_until = EXCLUDED.claimed_until, checks_hash = EXCLUDED.checks_hash,
    passed_until = CASE WHEN p.checks_hash = EXCLUDED.checks_hash THEN p.passed_until ELSE '-infinity' END
WHERE p.claimed_until <= clock_timestamp()
RETURNING lead_id, deferrals
