-- name: calls
-- The live calls of an account, those first whose last check is the oldest. Calls of the last seconds are left to their
-- webhooks.
SELECT a.id, a.lead_id, a.state, a.carrier_call_id, a.to_phone, a.from_phone, a.send_at,
       extract(epoch FROM clock_timestamp() - a.send_at)::float8 AS age_s
FROM attempts AS a
WHERE a.holds_channel AND a.carrier = $1 AND a.account = $2 AND a.carrier_call_id IS NOT NULL
  AND a.state IN ('accepted', 'ringing', 'answered') AND a.send_at < clock_timestamp() - interval '5 seconds'
ORDER BY coalesce(a.looked_at, a.send_at)

-- name: claim
-- Accounts whose calls are to be compared with their carrier's list now, each by one process at a time: when their turn has
-- come, or when calls that should ring by now have no event, as after lost webhooks. A new account has its turn in the next
-- round.
-- $1 lease in seconds  $2 seconds between two checks  $3 carriers whose webhooks do not report that a call rings
WITH live AS MATERIALIZED (
    SELECT a.carrier, a.account, count(*) AS calls,
           count(*) FILTER (WHERE a.state = 'accepted' AND a.send_at < clock_timestamp() - interval '15 seconds'
                              AND a.carrier <> ALL($3::text[])) AS unheard
    FROM attempts AS a
    WHERE a.holds_channel AND a.state IN ('accepted', 'ringing', 'answered')
    GROUP BY 1, 2
), known AS (
    INSERT INTO account_looks (carrier, account) SELECT carrier, account FROM live ORDER BY 1, 2
    ON CONFLICT DO NOTHING
), due AS (
    SELECT l.carrier, l.account
    FROM account_looks AS l JOIN live ON live.carrier = l.carrier AND live.account = l.account
    WHERE (l.leased_until IS NULL OR l.leased_until < clock_timestamp())
      AND (l.next_at <= clock_timestamp()
           OR (live.unheard >= greatest(3, live.calls / 5) AND l.looked_at < clock_timestamp() - interval '10 seconds'))
    ORDER BY 1, 2
    FOR NO KEY UPDATE OF l SKIP LOCKED
)
UPDATE account_looks AS l
SET leased_until = clock_timestamp() + make_interval(secs => $1), next_at = clock_timestamp() + make_interval(secs => $2)
FROM due
WHERE l.carrier = due.carrier AND l.account = due.account
RETURNING l.carrier, l.account

-- name: done
-- An account was compared. Its next turn is in $3 seconds, unless it was moved forward meanwhile.
UPDATE account_looks
SET leased_until = NULL, looked_at = clock_timestamp(),
    next_at = CASE WHEN next_at <= clock_timestamp() THEN next_at
                   ELSE clock_timestamp() + make_interval(secs => $3) END
WHERE carrier = $1 AND account = $2

-- name: note_receiving
-- A process that receives webhooks runs and reaches Postgres. If none did for longer than $1 seconds (no process, no Postgres,
-- no network), webhooks may have been lost, and the calls of all accounts are compared at once. A process that was at it when
-- the gap began may have failed with it: its lease is not waited for.
WITH before AS MATERIALIZED (
    SELECT ran_at FROM webhook_hearing FOR NO KEY UPDATE
), receiving AS (
    UPDATE webhook_hearing SET ran_at = clock_timestamp() FROM before
    RETURNING before.ran_at < clock_timestamp() - make_interval(secs => $1) AS is_gap
)
UPDATE account_looks AS l
SET next_at = least(l.next_at, greatest(clock_timestamp(), l.looked_at + interval '5 seconds')), leased_until = NULL
FROM receiving
WHERE receiving.is_gap
RETURNING l.carrier

-- name: note_checked
-- The carrier listed these calls. Those that ring or are answered ($2) need no other check for $3 seconds; one in the
-- carrier's queue keeps its own check, which cancels it when its window closes.
UPDATE attempts AS a
SET looked_at = clock_timestamp(),
    next_check_at = CASE WHEN w.is_under_way
                         THEN greatest(a.next_check_at, clock_timestamp() + make_interval(secs => $3)) ELSE a.next_check_at END
FROM (SELECT a.id, w.is_under_way
      FROM unnest($1::uuid[], $2::boolean[]) AS w (id, is_under_way) JOIN attempts AS a ON a.id = w.id
      WHERE a.holds_channel
      ORDER BY a.id FOR NO KEY UPDATE OF a) AS w
WHERE a.id = w.id

-- name: oldest
-- The age of the oldest check or event of a live call, by carrier.
SELECT a.carrier, max(extract(epoch FROM clock_timestamp()
                              - greatest(a.send_at, a.looked_at, a.ringing_at, a.answered_at)))::float8 AS age_s
FROM attempts AS a
WHERE a.holds_channel AND a.state IN ('accepted', 'ringing', 'answered')
GROUP BY 1

-- name: check_soon
-- Webhooks of an account were lost: its calls are compared at once, and every 5 s at most.
UPDATE account_looks
SET next_at = least(next_at, greatest(clock_timestamp(), looked_at + interval '5 seconds'))
WHERE carrier = $1 AND account = $2
