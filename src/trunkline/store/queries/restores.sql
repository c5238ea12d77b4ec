-- name: add
-- A detected restore, in the transaction that turns the kill switch on.
INSERT INTO restores (backup_at, reason) VALUES ($1, $2)

-- name: restore
-- Calls of locked, waiting leads, as attempts. The last call of a lead is inserted as one that the carrier has accepted: the
-- fold of its end, or the checker, decides about the lead as after any other call. The calls before it are over. A row that an
-- index refuses is left out, and so is its lead: the caller compares what was returned.
-- Channel numbers above every number's maximum ($16): no other call takes them, and the number takes no further call before it
-- has room.
WITH lost AS MATERIALIZED (
    SELECT c.*, l.reseller_id, l.merchant_id, l.campaign_id, l.due_at,
           coalesce((SELECT max(a.attempt_no) FROM attempts AS a WHERE a.lead_id = l.id), 0)
               + row_number() OVER (PARTITION BY c.lead_id ORDER BY c.nth) AS attempt_no
    FROM unnest($1::uuid[], $2::uuid[], $3::boolean[], $4::text[], $5::text[], $6::text[], $7::uuid[], $8::text[],
                $9::text[], $10::timestamptz[], $11::timestamptz[], $12::timestamptz[], $13::text[], $14::int[])
         WITH ORDINALITY AS c (id, lead_id, is_last, carrier, account, call_id, number_id, to_phone, from_phone, started_at,
                               answered_at, ended_at, end_reason, duration_s, nth)
    JOIN leads AS l ON l.id = c.lead_id
    WHERE l.status = 'BACKLOG'
), inserted AS (
    INSERT INTO attempts (id, lead_id, attempt_no, reseller_id, merchant_id, campaign_id, number_id, channel_no, carrier,
                          account, to_phone, from_phone, state, holds_channel, carrier_call_id, dialer, lead_due_at,
                          intent_at, send_at, accepted_at, answered_at, ended_at, end_reason, duration_s, next_check_at)
    SELECT id, lead_id, attempt_no, reseller_id, merchant_id, campaign_id, number_id, $16::int + nth::int, carrier,
           account, to_phone, from_phone, CASE WHEN is_last THEN 'accepted' ELSE 'ended' END, is_last, call_id, $15, due_at,
           started_at, started_at, started_at,
           CASE WHEN NOT is_last THEN answered_at END, CASE WHEN NOT is_last THEN ended_at END,
           CASE WHEN NOT is_last THEN end_reason END, CASE WHEN NOT is_last THEN duration_s END,
           CASE WHEN is_last THEN clock_timestamp() + interval '5 seconds' END
    FROM lost
    ORDER BY number_id, nth
    ON CONFLICT DO NOTHING
    RETURNING id, lead_id, holds_channel
), called AS (
    UPDATE leads AS l
    SET status = 'PROCESSING', attempt_count = least(l.attempt_count + i.calls, 32767), version = version + 1,
        updated_at = clock_timestamp()
    FROM (SELECT lead_id, count(*) AS calls FROM inserted GROUP BY lead_id HAVING bool_or(holds_channel)) AS i
    WHERE l.id = i.lead_id
)
SELECT id, lead_id FROM inserted WHERE holds_channel

-- name: are_settled
-- Of each restore that was found after this time, whether it is settled. Locked until the transaction ends: settling one waits
-- for it, and sees what it made.
SELECT settled_at IS NOT NULL AS is_settled FROM restores WHERE found_at >= $1 ORDER BY id FOR SHARE

-- name: end_unknown
-- Locked, waiting leads that may or may not have been called: they end as unknown, and are not called again automatically.
UPDATE leads
SET status = 'FINISHED', outcome = 'UNKNOWN', outcome_reason = $2, version = version + 1, finished_at = clock_timestamp(),
    updated_at = clock_timestamp()
WHERE id = ANY($1::uuid[]) AND status = 'BACKLOG'
RETURNING id

-- name: live
-- Calls that were live in the backup and are not resolved yet: the checker queries their carriers.
SELECT count(*) FROM attempts
WHERE direction = 'outbound' AND holds_channel AND state IN ('dialing', 'in_doubt', 'accepted', 'ringing', 'answered')
  AND intent_at <= $1

-- name: made_meanwhile
-- Leads of reminders that were due before the restore ($1), to people who were called ($2), and that were made after the
-- comparison: it has not seen them ($3).
SELECT l.id FROM leads AS l JOIN reminder_occurrences AS o ON o.lead_id = l.id
WHERE l.phone = ANY($2::text[]) AND l.status = 'BACKLOG' AND o.scheduled_at <= $1 AND l.id <> ALL($3::uuid[])
ORDER BY l.id

-- name: numbers
-- Our numbers, by E.164.
SELECT e164, id, pool_id, carrier, account FROM numbers

-- name: pools
-- The overflow pool of each pool.
SELECT id, overflow_pool_id FROM pools

-- name: note_settled
-- A comparison that an operator ran by its time, of a restore that was not detected.
INSERT INTO restores (backup_at, found_at, reason, settled_at, settled_by) VALUES ($1, $2, $3, clock_timestamp(), $4)

-- name: settle
-- Those that were found up to the time of the comparison are settled; one that was found since is not.
UPDATE restores SET settled_at = clock_timestamp(), settled_by = $2
WHERE settled_at IS NULL AND found_at <= $1
RETURNING id

-- name: unread
-- Leads that were due while this database's calls were lost, and that a number of these accounts may have called: their lists
-- could not be read. By id, a page at a time.
WITH RECURSIVE reach (pool_id, from_pool) AS (
    SELECT id, id FROM pools
    UNION
    SELECT p.overflow_pool_id, r.from_pool FROM reach AS r JOIN pools AS p ON p.id = r.pool_id
    WHERE p.overflow_pool_id IS NOT NULL
), suspect AS (
    SELECT DISTINCT r.from_pool FROM reach AS r
    JOIN numbers AS n ON n.pool_id = r.pool_id
    JOIN unnest($1::text[], $2::text[]) AS a (carrier, account) ON a.carrier = n.carrier AND a.account = n.account
)
SELECT l.id FROM leads AS l
WHERE l.status = 'BACKLOG' AND l.pool_id IN (SELECT from_pool FROM suspect) AND l.due_at <= $3 AND l.id > $4
ORDER BY l.id
LIMIT $5

-- name: unresolved
-- Of these calls ($1 to, $2 from, $3 when), those that an attempt without a call id may have placed: the checker resolves
-- them, and its lead is not called meanwhile. Carriers write whole seconds, and their clocks differ.
SELECT c.nth - 1 AS place
FROM unnest($1::text[], $2::text[], $3::timestamptz[]) WITH ORDINALITY AS c (to_phone, from_phone, at, nth)
WHERE EXISTS (
    SELECT FROM attempts AS a
    WHERE a.to_phone = c.to_phone AND a.direction = 'outbound' AND a.from_phone = c.from_phone
      AND a.carrier_call_id IS NULL AND a.state IN ('dialing', 'in_doubt', 'unknown')
      AND a.send_at BETWEEN c.at - interval '1 minute' AND c.at + interval '1 minute')

-- name: unsettled
-- What has to be compared: everything since the earliest unsettled backup. No row: nothing.
SELECT min(backup_at) AS backup_at, max(found_at) AS found_at, count(*) AS restores
FROM restores WHERE settled_at IS NULL
HAVING count(*) > 0

-- name: waiting
-- The waiting leads of these phones.
SELECT id, request_id, merchant_id, phone, pool_id, due_at, created_at FROM leads
WHERE phone = ANY($1::text[]) AND status = 'BACKLOG'
ORDER BY due_at, id
