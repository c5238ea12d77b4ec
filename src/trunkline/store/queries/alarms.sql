-- name: add_samples
-- The present samples.
INSERT INTO alarm_samples (at, name, subject, value)
SELECT clock_timestamp(), name, subject, value
FROM unnest($1::text[], $2::text[], $3::float8[]) AS seen (name, subject, value)

-- name: claim_notifications
-- Alarms that this process sends to the webhook, each claimed by one process for $3 seconds. If it dies, others claim them;
-- the webhook may then get one twice, under one id.
-- $1 alarms that `current` returned as due  $2 an alarm that lasts is sent again after this many seconds
UPDATE alarms AS a SET notify_after = clock_timestamp() + make_interval(secs => $3)
FROM (SELECT id FROM alarms
      WHERE id = ANY($1) AND (notify_after IS NULL OR notify_after <= clock_timestamp())
        AND (raise_told_at IS NULL OR (cleared_at IS NOT NULL AND clear_told_at IS NULL)
             OR (cleared_at IS NULL AND notified_at <= clock_timestamp() - make_interval(secs => $2)))
      ORDER BY id FOR UPDATE SKIP LOCKED) AS due
WHERE a.id = due.id
RETURNING a.*

-- name: clear
-- Its condition is over.
UPDATE alarms SET cleared_at = clock_timestamp(), cleared_by = $3
WHERE name = $1 AND subject = $2 AND cleared_at IS NULL
RETURNING *

-- name: clear_by_id
-- A person clears it.
UPDATE alarms SET cleared_at = clock_timestamp(), cleared_by = $2 WHERE id = $1 AND cleared_at IS NULL RETURNING *

-- name: current
-- Raised alarms, and ended ones without a notification. `is_due`: a notification is due, and no process has claimed it.
-- Two indexes find them, however many alarms there have been. $1 an alarm that lasts is sent again after this many seconds
SELECT a.*,
       (a.notify_after IS NULL OR a.notify_after <= clock_timestamp())
       AND (a.raise_told_at IS NULL OR a.cleared_at IS NOT NULL
            OR a.notified_at <= clock_timestamp() - make_interval(secs => $1)) AS is_due
FROM alarms AS a
WHERE a.id IN (SELECT id FROM alarms WHERE cleared_at IS NULL
               UNION ALL
               SELECT id FROM alarms
               WHERE (raise_told_at IS NULL OR (cleared_at IS NOT NULL AND clear_told_at IS NULL))
                 AND cleared_at IS NOT NULL)
ORDER BY a.id

-- name: dead_mailboxes
-- Dead mailboxes by kind: no worker processes their events until they are replayed. Counted up to a thousand.
SELECT kind AS subject, count(*)::float8 AS value
FROM (SELECT kind FROM mailboxes WHERE processing_status = 'dead' LIMIT 1000) AS dead
GROUP BY 1

-- name: forget_samples
-- No alarm reads older samples.
DELETE FROM alarm_samples WHERE at < clock_timestamp() - make_interval(secs => $1)

-- name: get
-- One alarm, if it is the tenant's.
SELECT * FROM alarms
WHERE id = $3 AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)

-- name: give_up_notifications
-- Alarms that ended hours ago without a notification: they are not sent any more.
UPDATE alarms
SET raise_told_at = coalesce(raise_told_at, cleared_at), clear_told_at = cleared_at
WHERE (raise_told_at IS NULL OR (cleared_at IS NOT NULL AND clear_told_at IS NULL))
  AND cleared_at < clock_timestamp() - interval '3 hours'

-- name: lateness
-- The 99th percentile of lateness of what was sent in the last minute, counted from the time when all that a call needs was
-- available. Attempt ids are UUIDv7, so the primary key finds them; the range is 30 s longer, for dialers whose clocks run
-- behind.
SELECT coalesce(percentile_cont(0.99) WITHIN GROUP (
           ORDER BY extract(epoch FROM send_at - coalesce(ready_at, lead_due_at))::float8), 0)
FROM attempts
WHERE id >= (SELECT (lpad(to_hex((extract(epoch FROM clock_timestamp() - interval '90 seconds') * 1000)::bigint), 12, '0')
             || '70008000000000000000')::uuid)
  AND send_at > clock_timestamp() - interval '1 minute'
  AND lead_due_at IS NOT NULL AND state <> 'rejected'

-- name: list
-- Newest first.
SELECT * FROM alarms
WHERE id < $3
  AND ($1::text IS NULL OR reseller_id = $1)
  AND ($2::text IS NULL OR merchant_id = $2)
  AND ($4::boolean IS NULL OR (cleared_at IS NULL) = $4)
  AND ($5::text IS NULL OR name = $5)
  AND ($6::text IS NULL OR severity = $6)
ORDER BY id DESC
LIMIT $7

-- name: long_stops
-- Stops and their age in hours. Those of campaigns are the campaigns' own states: drafts, pauses.
SELECT scope || CASE WHEN subject = '' THEN '' ELSE ' ' || subject END AS subject, reason, changed_by,
       extract(epoch FROM clock_timestamp() - stopped_at)::float8 / 3600 AS hours
FROM controls
WHERE scope <> 'campaign' AND (ends_at IS NULL OR ends_at > clock_timestamp())
ORDER BY stopped_at
LIMIT 1000

-- name: not_notified
-- The webhook did not accept it: another try after 5 s, twice as long each time, up to 5 minutes.
UPDATE alarms
SET notify_after = clock_timestamp() + make_interval(secs => least(300, 5 * 2 ^ notify_failures)),
    notify_failures = least(notify_failures + 1, 100)
WHERE id = $1

-- name: notified
-- The webhook accepted the notification of an alarm. An end that came later was not part of it: it is sent next.
-- $1 alarm  $2 whether its end was sent
UPDATE alarms
SET raise_told_at = coalesce(raise_told_at, clock_timestamp()),
    clear_told_at = CASE WHEN $2 THEN clock_timestamp() ELSE clear_told_at END,
    notified_at = clock_timestamp(), notify_after = NULL, notify_failures = 0
WHERE id = $1

-- name: placed
-- Did any call reach a carrier in the last minute?
SELECT EXISTS (
    SELECT FROM attempts
    WHERE id >= (SELECT (lpad(to_hex((extract(epoch FROM clock_timestamp() - interval '90 seconds') * 1000)::bigint), 12, '0')
                 || '70008000000000000000')::uuid)
      AND send_at > clock_timestamp() - interval '1 minute'
      AND direction = 'outbound' AND state NOT IN ('dialing', 'rejected'))

-- name: raise_alarm
-- Raise an alarm, or renew a raised one. One that was renewed within the last second is left alone: a hundred transactions
-- with the same alarm must not queue up behind one row.
INSERT INTO alarms AS a (id, name, subject, severity, detail, reseller_id, merchant_id)
SELECT $1, $2, $3, $4, $5, $6, $7
WHERE NOT EXISTS (
    SELECT FROM alarms
    WHERE name = $2 AND subject = $3 AND cleared_at IS NULL AND seen_at > clock_timestamp() - interval '1 second')
ON CONFLICT (name, subject) WHERE cleared_at IS NULL
DO UPDATE SET seen_at = clock_timestamp(), detail = excluded.detail
RETURNING id

-- name: record_outage
-- An outage of Postgres, recorded afterwards by every process that noticed it, under the id that they agreed on.
-- $1 id  $2 name  $3 severity  $4 detail  $5 seconds since it began  $6 whether the webhook was notified of its begin
INSERT INTO alarms AS a (id, name, severity, detail, raised_at, cleared_at, cleared_by, raise_told_at, notified_at)
SELECT $1, $2, $3, $4, now - make_interval(secs => $5), now, 'system', CASE WHEN $6 THEN now END, CASE WHEN $6 THEN now END
FROM clock_timestamp() AS now
ON CONFLICT (id) DO UPDATE
SET raise_told_at = coalesce(a.raise_told_at, excluded.raise_told_at), notified_at = coalesce(a.notified_at, excluded.notified_at)

-- name: samples
-- The samples of the last $1 seconds, oldest first.
SELECT name, subject, extract(epoch FROM clock_timestamp() - at)::float8 AS age_s, value
FROM alarm_samples
WHERE at > clock_timestamp() - make_interval(secs => $1)
ORDER BY at

-- name: unknown_attempts
-- Attempts in state `unknown` whose channel is still held, by carrier account.
SELECT carrier || '/' || account AS subject, count(*)::float8 AS value
FROM attempts WHERE holds_channel AND state = 'unknown'
GROUP BY 1

-- name: waiting_mailboxes
-- The age of the oldest mailbox of each kind that a worker could take, in seconds. Kind by kind from the index of claimable
-- mailboxes: idle ones cost nothing.
WITH RECURSIVE kinds AS (
    (SELECT kind FROM mailboxes WHERE claimable_at IS NOT NULL ORDER BY kind LIMIT 1)
    UNION ALL
    SELECT (SELECT m.kind FROM mailboxes AS m WHERE m.claimable_at IS NOT NULL AND m.kind > k.kind ORDER BY m.kind LIMIT 1)
    FROM kinds AS k WHERE k.kind IS NOT NULL
)
SELECT k.kind AS subject, extract(epoch FROM clock_timestamp() - oldest.claimable_at)::float8 AS value
FROM kinds AS k CROSS JOIN LATERAL (
    SELECT m.claimable_at FROM mailboxes AS m
    WHERE m.kind = k.kind AND m.claimable_at IS NOT NULL ORDER BY m.claimable_at LIMIT 1) AS oldest
WHERE oldest.claimable_at < clock_timestamp()
