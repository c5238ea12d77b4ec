-- Claim leads for asking: nobody else asks about them meanwhile, in this process or another. A claim that outlives its
-- process ends by itself. Whoever looked for leads before another one's answer was written claims none of these: it has
-- passed for long enough, or waits no longer.
-- $1 leads  $2 which checks  $3 for how many seconds  $4 a pass that holds for so many seconds is enough
INSERT INTO prechecks AS p (lead_id, checks_hash, claimed_until)
SELECT c.lead_id, c.checks_hash, clock_timestamp() + make_interval(secs => c.lease_s)
FROM unnest($1::uuid[], $2::bytea[], $3::float8[]) AS c (lead_id, checks_hash, lease_s)
JOIN leads AS l ON l.id = c.lead_id AND l.status = 'BACKLOG'
ORDER BY c.lead_id
ON CONFLICT (lead_id) DO UPDATE
SET claimed_until = EXCLUDED.claimed_until, checks_hash = EXCLUDED.checks_hash,
    passed_until = CASE WHEN p.checks_hash = EXCLUDED.checks_hash THEN p.passed_until ELSE '-infinity' END
WHERE p.claimed_until <= clock_timestamp()
  AND NOT (p.checks_hash = EXCLUDED.checks_hash AND p.passed_until > clock_timestamp() + make_interval(secs => $4))
RETURNING lead_id, deferrals
