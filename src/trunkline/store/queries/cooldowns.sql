-- name: begin
-- A carrier refused a call because of us. An existing cooldown keeps its probe and its time, and gets the newest cause. One
-- that only waited for a proof begins now.
-- $1 scopes  $2 subjects  $3 carriers  $4 accounts  $5 codes  $6 causes  $7 whether the calls were accepted first
-- $8 first wait
INSERT INTO cooldowns AS c (scope, subject, carrier, account, code, why, began_at, refused_at, opens_at, needs_ringing)
SELECT r.scope, r.subject, r.carrier, r.account, r.code, r.why, statement_timestamp(), statement_timestamp(),
       statement_timestamp() + make_interval(secs => $8), r.needs_ringing
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::boolean[])
     AS r (scope, subject, carrier, account, code, why, needs_ringing)
ORDER BY r.scope, r.subject
ON CONFLICT (scope, subject) DO UPDATE
SET code = EXCLUDED.code, why = EXCLUDED.why, refused_at = EXCLUDED.refused_at,
    needs_ringing = c.needs_ringing OR EXCLUDED.needs_ringing,
    began_at = CASE WHEN c.refused_at IS NULL THEN EXCLUDED.began_at ELSE c.began_at END
RETURNING scope, subject, code, why, began_at, opens_at

-- name: count_unreachable
-- How many processes recently failed to reach an account, with no accepted call since. Rows of processes that are gone are
-- deleted on the way.
-- $1 carrier  $2 account
WITH old AS (
    DELETE FROM cooldowns WHERE scope = 'process' AND refused_at < clock_timestamp() - interval '1 hour'
)
SELECT count(*) FROM cooldowns AS c
WHERE c.scope = 'process' AND c.carrier = $1 AND c.account = $2
  AND c.refused_at > clock_timestamp() - interval '2 minutes'
  AND c.refused_at > coalesce((SELECT h.taken_at FROM carrier_health AS h WHERE h.carrier = $1 AND h.account = $2),
                              '-infinity')

-- name: end_accepted
-- Cooldowns whose probe an intent found accepted. Another probe may have been named since it was read: then it stays.
-- $1 scopes  $2 subjects  $3 probes
DELETE FROM cooldowns AS c USING unnest($1::text[], $2::text[], $3::uuid[]) AS t (scope, subject, probe)
WHERE c.scope = t.scope AND c.subject = t.subject AND c.probe = t.probe
RETURNING c.scope, c.subject

-- name: active
-- The cooldowns that apply to the calls of an account, or of one of its numbers to one country: for display. A process that
-- cannot reach the carrier is listed for as long as it tries.
-- $1 carrier  $2 account  $3 number  $4 country, '' for all
SELECT c.scope, c.subject, c.code, c.why, c.began_at, c.refused_at, c.opens_at, c.probes,
       a.state IN ('dialing', 'in_doubt') AS is_probing
FROM cooldowns AS c LEFT JOIN attempts AS a ON a.id = c.probe
WHERE c.carrier = $1 AND c.account = $2 AND c.refused_at IS NOT NULL
  AND (c.scope = 'account' OR (c.scope = 'number' AND c.subject = $3::text)
       OR (c.scope = 'country' AND $4 IN ('', split_part(c.subject, '/', 3)))
       OR (c.scope = 'process' AND c.refused_at > clock_timestamp() - interval '10 minutes'))
ORDER BY c.began_at

-- name: note_accepted
-- Accounts accepted calls: they are proven, and cooldowns whose probes were among these calls are over. Where a carrier
-- accepts calls and fails them later, the ringing decides, and the next intent reads it. A process whose call was accepted
-- reaches the carrier, whichever call it was.
-- $1 carriers  $2 accounts  $3 accepted probes  $4 cooldowns of the process that they were sent from
WITH proven AS (
    INSERT INTO carrier_health AS h (carrier, account, taken_at)
    SELECT t.carrier, t.account, clock_timestamp() FROM unnest($1::text[], $2::text[]) AS t (carrier, account)
    ORDER BY t.carrier, t.account
    ON CONFLICT (carrier, account) DO UPDATE
    SET taken_at = greatest(h.taken_at, EXCLUDED.taken_at), unexplained_code = '', unexplained = '{}'
)
DELETE FROM cooldowns AS c
WHERE (c.probe = ANY($3::uuid[]) AND NOT c.needs_ringing) OR (c.scope = 'process' AND c.subject = ANY($4::text[]))
RETURNING c.scope, c.subject

-- name: note_unexplained
-- Leads were refused with a code in no table: how many people met it in a row, with no accepted call between. One lead of each
-- counts: a person with three waiting leads is one person.
-- $1 carrier  $2 account  $3 code  $4 leads
INSERT INTO carrier_health AS h (carrier, account, unexplained_code, unexplained)
VALUES ($1, $2, $3, ARRAY(SELECT DISTINCT ON (l.phone) l.id FROM leads AS l
                          WHERE l.id = ANY($4::uuid[]) ORDER BY l.phone, l.id LIMIT 16))
ON CONFLICT (carrier, account) DO UPDATE
SET unexplained_code = EXCLUDED.unexplained_code,
    unexplained = CASE WHEN h.unexplained_code = EXCLUDED.unexplained_code
                       THEN ARRAY(SELECT DISTINCT ON (l.phone) l.id FROM leads AS l
                                  WHERE l.id = ANY(h.unexplained || EXCLUDED.unexplained)
                                  ORDER BY l.phone, l.id LIMIT 16)
                       ELSE EXCLUDED.unexplained END
RETURNING cardinality(unexplained)

-- name: renew_account
-- An account has other credentials, or another address: earlier evidence does not apply to these. It begins with a probe when
-- every process has read the change.
-- $1 carrier  $2 account  $3 seconds until then
WITH health AS (
    DELETE FROM carrier_health WHERE carrier = $1 AND account = $2
), others AS (
    DELETE FROM cooldowns WHERE carrier = $1 AND account = $2 AND scope <> 'account'
    RETURNING scope, subject
), own AS (
    INSERT INTO cooldowns AS c (scope, subject, carrier, account, code, opens_at)
    VALUES ('account', $1 || '/' || $2, $1, $2, 'unproven', clock_timestamp() + make_interval(secs => $3))
    ON CONFLICT (scope, subject) DO UPDATE
    SET code = EXCLUDED.code, why = '', refused_at = NULL, opens_at = EXCLUDED.opens_at, probes = 0, probe = NULL,
        needs_ringing = false, began_at = clock_timestamp()
    RETURNING scope, subject
)
SELECT scope, subject FROM others UNION ALL SELECT scope, subject FROM own

-- name: resting
-- Numbers that may not dial before a time, for the match: those of a cooldown whose next probe is not due. One whose probe is
-- in flight, or was not sent after all, is left to the intent: it may be decided at any time.
SELECT n.id, max(c.opens_at) AS until
FROM cooldowns AS c
LEFT JOIN attempts AS a ON a.id = c.probe
JOIN numbers AS n ON n.carrier = c.carrier AND n.account = c.account AND (c.scope = 'account' OR n.id::text = c.subject)
WHERE c.scope IN ('account', 'number') AND c.opens_at > clock_timestamp()
  AND (a.id IS NULL OR a.state IN ('absent', 'unknown', 'ended')
       OR (a.state = 'rejected' AND a.end_reason ~ '^(refused_|not_connected)'))
GROUP BY n.id

-- name: taken_at
-- When accounts last accepted a call.
-- $1 carriers  $2 accounts
SELECT h.carrier, h.account, h.taken_at FROM carrier_health AS h
JOIN unnest($1::text[], $2::text[]) AS q (carrier, account) ON q.carrier = h.carrier AND q.account = h.account
WHERE h.taken_at IS NOT NULL
