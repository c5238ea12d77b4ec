-- name: are_wanted
-- Does any layer of any policy have pre-checks? Most installations have none, and their flows need not be walked.
SELECT EXISTS (SELECT FROM policies WHERE jsonb_typeof(policy -> 'prechecks') = 'array' AND policy -> 'prechecks' <> '[]')

-- name: claim
-- Claim leads for a check: no other process or task checks them meanwhile. A claim that outlives its process expires. A caller
-- that read leads before another one's result was written claims none of these: the pass is valid for long enough, or the lead
-- waits no longer.
-- $1 leads  $2 which checks  $3 for how many seconds  $4 a pass that is valid for this many seconds is enough
INSERT INTO prechecks AS p (lead_id, reseller_id, merchant_id, checks_hash, claimed_until)
SELECT c.lead_id, l.reseller_id, l.merchant_id, c.checks_hash, clock_timestamp() + make_interval(secs => c.lease_s)
FROM unnest($1::uuid[], $2::bytea[], $3::float8[]) AS c (lead_id, checks_hash, lease_s)
JOIN leads AS l ON l.id = c.lead_id AND l.status = 'BACKLOG'
ORDER BY c.lead_id
ON CONFLICT (lead_id) DO UPDATE
SET claimed_until = EXCLUDED.claimed_until, checks_hash = EXCLUDED.checks_hash,
    passed_until = CASE WHEN p.checks_hash = EXCLUDED.checks_hash THEN p.passed_until ELSE '-infinity' END
WHERE p.claimed_until <= clock_timestamp()
  AND NOT (p.checks_hash = EXCLUDED.checks_hash AND p.passed_until > clock_timestamp() + make_interval(secs => $4))
RETURNING lead_id, deferrals

-- name: fail
-- It did not pass. A deferral is counted: their number is bounded.
UPDATE prechecks
SET passed_until = '-infinity', claimed_until = clock_timestamp(), deferrals = deferrals + $2, last_answer = $3
WHERE lead_id = $1

-- name: lock_lead
-- The lead that did not pass, if it has not changed since the check began.
SELECT id, clock_timestamp() AS now FROM leads WHERE id = $1 AND version = $2 AND status = 'BACKLOG' FOR NO KEY UPDATE

-- name: let_pass
-- It may be called, for as long as the pass is valid.
UPDATE prechecks
SET passed_until = clock_timestamp() + make_interval(secs => $3), claimed_until = clock_timestamp(), last_answer = $4
WHERE lead_id = $1 AND checks_hash = $2

-- name: waiting
-- Leads to check, as they are now.
SELECT l.id, l.version, l.request_id, l.reseller_id, l.merchant_id, l.campaign_id, l.phone, l.timezone, l.payload,
       l.attempt_count, l.due_at,
       CASE WHEN p.passed_until > clock_timestamp() + make_interval(secs => $2) THEN p.checks_hash END AS passed_checks
FROM leads AS l
LEFT JOIN prechecks AS p ON p.lead_id = l.id
WHERE l.id = ANY($1::uuid[]) AND l.status = 'BACKLOG'
