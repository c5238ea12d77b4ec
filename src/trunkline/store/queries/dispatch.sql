-- name: count_limits
-- The counts of every intent, without a lock: for display. Migrations 0033 and 0055 have the counting, for an intent too.
-- $1-$5 calls to a person: phone, merchant or '' for all, at most, window in s, the merchant that calls
-- $6-$7 paces: kind, subject   $8-$9 accounts: carrier, account   $10 numbers
SELECT kind, which, n, m, at, flag, words, since
FROM count_limits(statement_timestamp(), $1, $2, $3, $4, $5, $6, $7, $8, $9, $10)

-- name: count_conditional
-- The counts that only some intents need, later than the locks like `count_limits`: the last talk with a person, concurrent
-- calls, and what merchants have used today.
--
-- $1-$3 last talk with a person: phone, merchant, cooldown in s
-- $4 merchants, $5-$6 campaigns (merchant, campaign): concurrent calls
-- $7-$11 days of merchants: merchant, day, its first moment, the attempts and the money from which the exact count matters
SELECT 'talk' AS kind, q.which, NULL::bigint AS n, NULL::bigint AS m, last.answered_at AS at, NULL::boolean AS flag
FROM unnest($1::text[], $2::text[], $3::int[]) WITH ORDINALITY AS q (phone, merchant_id, cooldown_s, which)
CROSS JOIN LATERAL (
    SELECT max(a.answered_at) AS answered_at
    FROM attempts AS a
    WHERE a.to_phone = q.phone AND a.direction = 'outbound' AND a.merchant_id = q.merchant_id
      -- No call lasts for four hours.
      AND a.send_at > statement_timestamp() - make_interval(secs => q.cooldown_s + 14400)
      -- A call without an agent is no contact, and our failure costs the lead nothing.
      AND a.agent IS DISTINCT FROM 'none'
      AND a.answered_at > statement_timestamp() - make_interval(secs => q.cooldown_s)) AS last
WHERE last.answered_at IS NOT NULL
UNION ALL
SELECT 'merchant', q.which, (SELECT count(*) FROM attempts AS a
                                  WHERE a.holds_channel AND a.direction = 'outbound' AND a.merchant_id = q.merchant_id),
       NULL, NULL, NULL
FROM unnest($4::text[]) WITH ORDINALITY AS q (merchant_id, which)
UNION ALL
SELECT 'campaign', q.which,
       (SELECT count(*) FROM attempts AS a
        WHERE a.holds_channel AND a.direction = 'outbound' AND a.merchant_id = q.merchant_id
          AND a.campaign_id = q.campaign_id),
       NULL, NULL, NULL
FROM unnest($5::text[], $6::uuid[]) WITH ORDINALITY AS q (merchant_id, campaign_id, which)
UNION ALL
SELECT 'day', q.which, d.attempts - coalesce(u.attempts, 0), d.spent_micros - coalesce(u.micros, 0), NULL, NULL
FROM unnest($7::text[], $8::date[], $9::timestamptz[], $10::bigint[], $11::bigint[])
     WITH ORDINALITY AS q (merchant_id, day, first_at, attempts_from, micros_from, which)
JOIN merchant_days AS d ON d.merchant_id = q.merchant_id AND d.day = q.day
-- What was counted and then not placed is subtracted, looked up only when it matters.
LEFT JOIN LATERAL (
    SELECT count(*) AS attempts, sum(a.reserved_micros)::bigint AS micros
    FROM attempts AS a
    WHERE (d.attempts >= q.attempts_from OR d.spent_micros >= q.micros_from)
      AND a.merchant_id = q.merchant_id AND a.state IN ('rejected', 'absent')
      -- A row that was written because a COMMIT was lost, and had not gone through, was never counted: `disown`.
      AND NOT (a.ordinal = 0 AND a.end_reason = 'not_sent')
      -- A call that was prepared yesterday, within a second of midnight, may be one of today's.
      AND a.intent_at >= q.first_at - interval '1 second' AND greatest(a.intent_at, a.lead_due_at) >= q.first_at) AS u ON true

-- name: count_overdialled
-- Under the locks of its groups, and in a later statement than these: the calls that ring without a reserved agent, and the
-- agents that are free for them. A call rings until it has an allocation, which it gets when it is answered.
-- Free is a slot of a pod that takes dials, less the inbound reserve and one for every waiting call, or call that rings after
-- its pod was lost. Also: which of these persons their merchant abandoned before.
-- $1 groups and $2 their tiers, in pairs  $3 inbound reserve of each tier in slots, -1: 10 %
-- $4 seconds without a request after which a waiting call has hung up  $5 merchants, $6 phones
WITH requested AS MATERIALIZED (
    SELECT t.name, t.tier, t.callers FROM unnest($1::text[], $2::text[], $3::int[]) AS t (name, tier, callers)
), pod AS MATERIALIZED (
    SELECT t.name, t.tier, p.calls_max,
           -- A pod that its last calls did not reach gets one at a time.
           least(p.calls_max - cardinality(p.hanging) - (SELECT count(*) FROM allocations AS l
                                                         WHERE l.pod = p.name AND l.slot <= p.calls_max AND l.ended_at IS NULL),
                 CASE WHEN p.missed >= 2 THEN 1 END) AS free
    FROM requested AS t JOIN pods AS p ON p.tier = t.tier
    WHERE pod_takes(p, true)
), tier AS (
    SELECT t.name, t.tier,
           greatest(0, coalesce(sum(p.free), 0)
                       - CASE WHEN t.callers >= 0 THEN t.callers ELSE coalesce(sum(p.calls_max), 0)::int / 10 END) AS free
    FROM requested AS t LEFT JOIN pod AS p ON p.name = t.name AND p.tier = t.tier
    GROUP BY t.name, t.tier, t.callers
), waiting AS (
    SELECT count(*) AS calls FROM allocations AS w
    WHERE w.ended_at IS NULL AND w.pod IS NULL
      AND (w.call IS NULL OR w.polled_at > clock_timestamp() - make_interval(secs => $4))
)
SELECT g.name, NULL AS phone, greatest(0, g.free - w.calls)::int AS free, r.calls::int AS calls,
       r.answers_expected, r.abandon_max
FROM (SELECT t.name, sum(t.free) AS free FROM tier AS t GROUP BY t.name) AS g
CROSS JOIN waiting AS w
CROSS JOIN LATERAL (
    SELECT count(*) AS calls, coalesce(sum(a.answer_rate::float8), 0) AS answers_expected,
           coalesce(min(a.abandon_max::float8), 1) AS abandon_max
    FROM attempts AS a
    WHERE a.overdial_group = g.name AND a.state IN ('dialing', 'in_doubt', 'accepted', 'ringing')
      AND NOT EXISTS (SELECT FROM allocations AS l WHERE l.id = a.id)
) AS r
UNION ALL
SELECT q.merchant_id, q.phone, NULL, NULL, NULL, NULL
FROM unnest($5::text[], $6::text[]) AS q (merchant_id, phone)
WHERE EXISTS (SELECT FROM abandoned_calls AS c WHERE c.merchant_id = q.merchant_id AND c.phone = q.phone)

-- name: disown
-- Attempts whose COMMIT got no reply are written as not sent, whether or not it went through. The upsert waits for a commit in
-- flight; a read would not. One that went through and has moved on since (only this dialer could have sent it, but a loop may
-- have checked it) is left alone. One that did not go through leaves a row that keeps the id from being used.
-- Such a row has no number (see `attempts_number`): a later attempt of the lead must stay the newest, and the merchant's day, which
-- never counted it, has nothing to subtract.
INSERT INTO attempts AS a (id, lead_id, attempt_no, reseller_id, merchant_id, campaign_id, number_id, channel_no,
                           carrier, account, to_phone, from_phone, lead_due_at, intent_at, send_at, dialer,
                           state, holds_channel, ended_at, end_reason, next_check_at)
SELECT id, lead_id, attempt_no, reseller_id, merchant_id, campaign_id, number_id, channel_no,
       carrier, account, to_phone, from_phone, lead_due_at, intent_at, send_at, $16,
       'rejected', false, clock_timestamp(), 'not_sent', NULL
FROM unnest($1::uuid[], $2::uuid[], $3::smallint[], $4::text[], $5::text[], $6::uuid[], $7::uuid[], $8::int[],
            $9::text[], $10::text[], $11::text[], $12::text[], $13::timestamptz[], $14::timestamptz[],
            $15::timestamptz[])
     AS w (id, lead_id, attempt_no, reseller_id, merchant_id, campaign_id, number_id, channel_no,
           carrier, account, to_phone, from_phone, lead_due_at, intent_at, send_at)
ORDER BY id
ON CONFLICT (id) DO UPDATE
SET state = 'rejected', holds_channel = false, ended_at = clock_timestamp(), end_reason = 'not_sent', next_check_at = NULL
WHERE a.state IN ('dialing', 'in_doubt') AND a.dialer = EXCLUDED.dialer
RETURNING a.lead_id

-- name: disown_leads
-- Leads whose attempt was never sent are due again at once, and the attempt does not count. A lead that another attempt calls
-- meanwhile is left to it. One that was cancelled meanwhile ends here: no person was called.
WITH back AS (
    UPDATE leads AS l
    SET status = CASE WHEN l.cancel_requested_at IS NULL THEN 'BACKLOG' ELSE 'FINISHED' END,
        outcome = CASE WHEN l.cancel_requested_at IS NULL THEN l.outcome ELSE 'ABORTED' END,
        outcome_reason = CASE WHEN l.cancel_requested_at IS NULL THEN l.outcome_reason ELSE l.cancel_reason END,
        finished_at = CASE WHEN l.cancel_requested_at IS NOT NULL THEN clock_timestamp() END,
        attempt_count = attempt_count - 1, version = version + 1, updated_at = clock_timestamp()
    WHERE l.id = ANY($1::uuid[]) AND l.status = 'PROCESSING'
      AND NOT EXISTS (SELECT FROM attempts AS a
                      WHERE a.lead_id = l.id AND a.state IN ('dialing', 'in_doubt', 'accepted', 'ringing', 'answered'))
    RETURNING l.id, l.version, l.priority, l.due_at, l.closes_at, l.pool_id, l.reseller_id, l.merchant_id, l.campaign_id,
          l.phone, l.status
)
SELECT b.*, p.overflow_pool_id, p.overflow_after_s, CASE WHEN p.region_affinity THEN phone_region(b.phone) END AS region
FROM back AS b JOIN pools AS p ON p.id = b.pool_id
WHERE b.status = 'BACKLOG'

-- name: disown_lock
-- Before attempts are disowned: their leads, in id order. The transaction that commits them holds these rows, so this waits
-- for the commit whose reply was lost.
SELECT id FROM leads WHERE id = ANY($1::uuid[]) ORDER BY id FOR NO KEY UPDATE

-- name: explain
-- Why leads could not be locked as granted, read afterwards: only for the refusal, never to act on.
SELECT g.attempt_id, l.status, l.version, l.due_at, clock_timestamp() AS now,
       l.due_at <= clock_timestamp() + interval '1 second' AS is_due,
       coalesce(to_timestamp(g.granted_ms / 1000.0) <= clock_timestamp() - interval '3 seconds', false) AS is_stale
FROM unnest($1::uuid[], $2::uuid[], $3::bigint[]) AS g (attempt_id, lead_id, granted_ms)
LEFT JOIN leads AS l ON l.id = g.lead_id

-- name: groups_ringing
-- The groups of tiers for which calls ring without a reserved agent. Most installations have none: then dials with a
-- reservation need not count what they leave free.
SELECT DISTINCT a.overdial_group
FROM attempts AS a
WHERE a.overdial_group IS NOT NULL AND a.state IN ('dialing', 'in_doubt', 'accepted', 'ringing')

-- name: lock_and_count_limits
-- Second step of the intent: lock the limits, then take the counts of every intent. Migrations 0033 and 0055 have both, and
-- say why they are two statements of one function. Its plans are made once, as `lock_granted` sets it for this transaction.
-- A row is a number under its lock (kind 'locked') or answers one question: (kind, which, n, m, at, flag).
--
-- $1 keys of names, in order   $2 numbers
-- $3-$7 calls to a person: phone, merchant or '' for all, at most, window in s, the merchant that calls
-- $8-$9 paces: kind, subject   $10-$11 accounts: carrier, account
SELECT kind, which, n, m, at, flag, id, e164, carrier, account, max_channels, starts_per_s, status, pool_id,
       words, since
FROM lock_and_count_limits($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)

-- name: lock_closed
-- Leads whose window closed before their turn came, if they have not changed. Locked ones are skipped.
SELECT l.id, l.phone, l.timezone, l.merchant_id, l.reseller_id, l.campaign_id, l.due_at, clock_timestamp() AS now
FROM unnest($1::uuid[], $2::int[]) AS c (lead_id, version)
JOIN leads AS l ON l.id = c.lead_id
WHERE l.status = 'BACKLOG' AND l.version = c.version
ORDER BY l.id
FOR NO KEY UPDATE OF l SKIP LOCKED

-- name: lock_granted
-- First step of the intent: lock, in id order, the leads that are still as granted, whose due time comes within a second (the
-- call leaves then, not before) and whose grant is younger than 3 s (the channel of a grant that its dialer slept over may
-- have been granted again). What expires by then does not count any more.
-- A lead that is locked already is skipped: it must not delay the others of its batch.
-- `bounds` runs first: no lead is searched before it. It sets what applies to this transaction and ends with it, so that a
-- pooler's next client does not inherit it: the two time-outs, and how the next statements are planned, those of a function
-- too. They are planned once (each new plan costs 1 ms of a dial's 2), and row by row through indexes, since a plan that was
-- made while the tables were small would read them whole when they are large.
-- This statement is planned before that is set, so each lead has a query of its own, and its status is hidden from the
-- planner: on a small table the index of all waiting leads looks as cheap as the primary key, and is then read from end to
-- end ever after. The number of leads is hidden too, by a sub-select: a plan for one would always seem cheaper than that for
-- any number, and be made anew each time (0.7 ms).
-- Carrier and account of the granted number are read on the way, unlocked: they name the account that is locked next.
-- $1 leads  $2 versions  $3 when each was granted, in ms, or NULL  $4 their numbers
-- $5 lock time-out in ms  $6 transaction time-out in ms  $7-$8 the database that the caller has seen, and its beat
WITH bounds AS MATERIALIZED (
    SELECT set_config('lock_timeout', $5::text, true), set_config('transaction_timeout', $6::text, true),
           set_config('plan_cache_mode', 'force_generic_plan', true) AS plans, set_config('enable_seqscan', 'off', true),
           set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true)
)
SELECT l.id, l.phone, l.timezone, l.merchant_id, l.reseller_id, l.campaign_id, l.attempt_count, l.max_attempts,
       l.due_at, l.closes_at, l.expires_at, l.pool_id, o.overflow_pool_id, l.no_agent_count, b.opens_at AS agents_from,
       -- While calls of this merchant find no agent, one call at a time probes whether they do again.
       least(m.max_concurrent, b.live_max) AS merchant_max_concurrent, n.carrier, n.account, clock_timestamp() AS now,
       -- May calls start at all, and is this that database, not an earlier state of it? Checked here, where no process's view
       -- of the controls can be late.
       coalesce((SELECT c.scope FROM controls AS c
                 WHERE c.scope IN ('kill_switch', 'promoter') AND (c.ends_at IS NULL OR c.ends_at > clock_timestamp())
                 ORDER BY c.scope LIMIT 1),
                (SELECT 'database_went_back' FROM continuity AS c
                 WHERE $7::uuid IS NOT NULL AND (c.installation IS DISTINCT FROM $7 OR c.beat < $8::bigint)),
                -- Of a campaign too: its first leads may come while it is being made, and a draft calls none.
                (SELECT c.scope FROM controls AS c
                 WHERE l.campaign_id IS NOT NULL AND c.scope = 'campaign'
                   AND c.subject = l.merchant_id || '/' || l.campaign_id
                   AND (c.ends_at IS NULL OR c.ends_at > clock_timestamp())
                 LIMIT 1),
                -- Another system has called it, or still does: see the table `cutovers`.
                (SELECT 'event_dispatch' FROM cutovers AS c
                 WHERE c.merchant_id = l.merchant_id AND l.due_at < coalesce(c.since, 'infinity'))) AS halted,
       (SELECT CASE WHEN d.merchant_id IS NOT NULL THEN 'merchant'
                    WHEN d.reseller_id IS NOT NULL THEN 'reseller' ELSE 'platform' END
        FROM do_not_call AS d
        WHERE d.phone = l.phone AND (d.expires_at IS NULL OR d.expires_at > greatest(clock_timestamp(), l.due_at))
          AND (d.reseller_id IS NULL
               OR (d.reseller_id = l.reseller_id AND (d.merchant_id IS NULL OR d.merchant_id = l.merchant_id)))
        LIMIT 1) AS listed_by,
       (SELECT p.checks_hash FROM prechecks AS p
        WHERE p.lead_id = l.id AND p.passed_until > greatest(clock_timestamp(), l.due_at)) AS passed_checks,
       -- Vapi's own assistant talks, and knows only what comes with the request. Other agents fetch their context.
       CASE WHEN n.carrier = 'vapi' THEN l.payload::text END AS payload,
       'elsewhere' IN (m.agents, o.agents) AS are_agents_elsewhere
FROM bounds
CROSS JOIN (SELECT * FROM unnest((SELECT $1::uuid[]), $2::int[], $3::bigint[], $4::uuid[])
                          AS g (lead_id, version, granted_ms, number_id)
            ORDER BY lead_id) AS g
CROSS JOIN LATERAL (
    SELECT l.id, l.phone, l.timezone, l.merchant_id, l.reseller_id, l.campaign_id, l.attempt_count, l.max_attempts,
           l.due_at, l.closes_at, l.expires_at, l.pool_id, l.payload, l.no_agent_count FROM leads AS l
    WHERE bounds.plans IS NOT NULL AND l.id = g.lead_id AND l.version = g.version
      AND l.status || '' = 'BACKLOG' AND l.due_at <= clock_timestamp() + interval '1 second'
      AND (g.granted_ms IS NULL OR to_timestamp(g.granted_ms / 1000.0) > clock_timestamp() - interval '3 seconds')
    LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED) AS l
JOIN merchants AS m ON m.id = l.merchant_id
JOIN pools AS o ON o.id = l.pool_id
LEFT JOIN numbers AS n ON n.id = g.number_id
LEFT JOIN LATERAL no_agent_brake(l.merchant_id) AS b ON true

-- name: name_probes
-- Last step of an intent: the attempts that were inserted as probes, by scope and subject. Under the lock of their account, so
-- there is one at a time over all processes.
-- $1 scopes  $2 subjects  $3 carriers  $4 accounts  $5 probes  $6 how many there were  $7 not before then the next
INSERT INTO cooldowns AS c (scope, subject, carrier, account, code, probe, probes, opens_at)
SELECT p.scope, p.subject, p.carrier, p.account, 'unproven', p.probe, p.probes, p.opens_at
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::uuid[], $6::int[], $7::timestamptz[])
     AS p (scope, subject, carrier, account, probe, probes, opens_at)
ORDER BY p.scope, p.subject
ON CONFLICT (scope, subject) DO UPDATE
SET probe = EXCLUDED.probe, probes = EXCLUDED.probes, opens_at = EXCLUDED.opens_at

-- name: owners
-- The attempts that conflict with those that were not inserted: the one on the channel, the one that calls the same person
-- from the same number, or the lead's own. Read in a later statement than the insert, which may have waited for it.
SELECT w.id, c.id AS channel_owner, p.id AS person_owner, o.id AS lead_owner
FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::int[], $5::text[], $6::text[])
     AS w (id, lead_id, number_id, channel_no, to_phone, from_phone)
LEFT JOIN attempts AS c ON c.number_id = w.number_id AND c.channel_no = w.channel_no AND c.holds_channel
LEFT JOIN attempts AS p ON p.to_phone = w.to_phone AND p.from_phone = w.from_phone AND p.direction = 'outbound'
    AND p.state IN ('dialing', 'in_doubt', 'accepted', 'ringing', 'answered')
LEFT JOIN attempts AS o ON o.lead_id = w.lead_id
    AND o.state IN ('dialing', 'in_doubt', 'accepted', 'ringing', 'answered')

-- name: defer_broken
-- A lead that breaks its own intent must not be tried again and again: it is deferred for 30 s, twice as long each time up to
-- an hour, and ends after ten times.
-- $1 lead  $2 version  $3 error
WITH locked AS (
    SELECT id, merchant_id FROM leads WHERE id = $1 AND version = $2 AND status = 'BACKLOG' FOR NO KEY UPDATE
), refusal AS (
    INSERT INTO decisions AS d (lead_id, reason, merchant_id, subject)
    SELECT id, 'error', merchant_id, $3 FROM locked
    ON CONFLICT (lead_id, reason) DO UPDATE
    SET times = d.times + 1, last_at = clock_timestamp(), subject = EXCLUDED.subject
    RETURNING lead_id, times
), deferred AS (
    UPDATE leads AS l
    SET version = version + 1, updated_at = clock_timestamp(),
        due_at = clock_timestamp() + least(interval '30 seconds' * 2 ^ (t.times - 1), interval '1 hour'),
        status = CASE WHEN t.times < 10 THEN 'BACKLOG' ELSE 'FINISHED' END,
        outcome = CASE WHEN t.times >= 10 THEN 'NO_CONFIG' END,
        outcome_reason = CASE WHEN t.times >= 10 THEN 'ERROR' END,
        finished_at = CASE WHEN t.times >= 10 THEN clock_timestamp() END
    FROM refusal AS t
    WHERE l.id = t.lead_id
    RETURNING l.*
)
SELECT o.id, o.version, o.priority, o.due_at, o.closes_at, o.pool_id, o.reseller_id, o.merchant_id, o.campaign_id,
       o.outcome, o.outcome_reason, p.overflow_pool_id, p.overflow_after_s,
       CASE WHEN p.region_affinity THEN phone_region(o.phone) END AS region
FROM deferred AS o JOIN pools AS p ON p.id = o.pool_id

-- name: slow_account
-- The carrier throttled an account: it starts nothing before then. A transaction of its own, with this as its only row.
INSERT INTO paces AS p (kind, subject, next_start_at)
VALUES ('account', $1, clock_timestamp() + make_interval(secs => $2))
ON CONFLICT (kind, subject) DO UPDATE SET next_start_at = greatest(p.next_start_at, EXCLUDED.next_start_at)

-- name: write_intents
-- Last step: the slots of the agents, the attempts, and the counters of those that were inserted.
-- Slots go in by (pod, slot), all of them before the first attempt: a transaction that waits for an agent holds no channel. A
-- slot that another call has, or of a pod that takes no dial any more, leaves its attempt out: no agent, no dial. The caller
-- drops a slot whose attempt was not inserted, in the same transaction.
-- Attempts go in by (number, channel), so that all inserting transactions meet in one order. A conflict with a unique index
-- skips the row: only returned ids may be sent, and only their leads are started. The counters of days and the paces are
-- advanced for them alone: a skipped row costs no turn. Both come after all attempts, in one order: a transaction that waits
-- for a channel holds neither.
--
-- $1-$17 attempts, $18 the dialer   $19-$22 paces: of which attempt, kind, subject, next start
-- $23-$26 slots of the attempts: pod, slot, incarnation, source pool; all NULL where no agent is needed, or none is reserved
-- by choice: $27-$29 are then the group whose agents the call counts on, the probability of an answer, and its share
-- $30 when all that each call needs was available
WITH wanted AS MATERIALIZED (
    SELECT *
    FROM unnest($1::uuid[], $2::uuid[], $3::smallint[], $4::text[], $5::text[], $6::uuid[], $7::uuid[], $8::int[],
                $9::text[], $10::text[], $11::text[], $12::text[], $13::timestamptz[], $14::timestamptz[],
                $15::timestamptz[], $16::bigint[], $17::date[], $23::text[], $24::int[], $25::bigint[], $26::text[],
                $27::text[], $28::real[], $29::real[], $30::timestamptz[])
         AS w (id, lead_id, attempt_no, reseller_id, merchant_id, campaign_id, number_id, channel_no,
               carrier, account, to_phone, from_phone, lead_due_at, intent_at, send_at, reserved_micros, day,
               pod, slot, incarnation, source_pool, overdial_group, answer_rate, abandon_max, ready_at)
), reserved AS (
    INSERT INTO allocations (id, has_attempt, merchant_id, pod, slot, incarnation, source_pool)
    SELECT w.id, true, w.merchant_id, w.pod, w.slot, w.incarnation, w.source_pool
    FROM wanted AS w JOIN pods AS p ON p.name = w.pod
    WHERE p.incarnation = w.incarnation AND w.slot <= p.calls_max AND pod_takes(p, true)
      AND (p.hanging = '{}' OR pod_slot_fits(p.name, p.calls_max, p.hanging, w.slot))
      -- Valkey does not have the calls that lost an agent and wait for another.
      AND p.tier <> ALL((SELECT waited_tiers(7))::text[])
    ORDER BY w.pod, w.slot
    ON CONFLICT DO NOTHING
    RETURNING id
), inserted AS (
    INSERT INTO attempts (id, lead_id, attempt_no, reseller_id, merchant_id, campaign_id, number_id, channel_no,
                          carrier, account, to_phone, from_phone, lead_due_at, intent_at, send_at, reserved_micros, dialer,
                          overdial_group, answer_rate, abandon_max, ready_at)
    SELECT id, lead_id, attempt_no, reseller_id, merchant_id, campaign_id, number_id, channel_no,
           carrier, account, to_phone, from_phone, lead_due_at, intent_at, send_at, reserved_micros, $18,
           overdial_group, answer_rate, abandon_max, ready_at
    FROM wanted
    WHERE pod IS NULL OR id IN (SELECT k.id FROM reserved AS k)
    ORDER BY number_id, channel_no
    ON CONFLICT DO NOTHING
    RETURNING id, lead_id
), started AS (
    UPDATE leads AS l
    SET status = 'PROCESSING', attempt_count = attempt_count + 1, version = version + 1, updated_at = clock_timestamp()
    FROM inserted AS i
    WHERE l.id = i.lead_id
), used AS (
    INSERT INTO merchant_days AS d (merchant_id, day, attempts, spent_micros)
    SELECT w.merchant_id, w.day, count(*), sum(w.reserved_micros)
    FROM inserted AS i JOIN wanted AS w ON w.id = i.id
    GROUP BY 1, 2 ORDER BY 1, 2
    ON CONFLICT (merchant_id, day) DO UPDATE
    SET attempts = d.attempts + EXCLUDED.attempts, spent_micros = d.spent_micros + EXCLUDED.spent_micros
    RETURNING 1
), paced AS (
    INSERT INTO paces AS p (kind, subject, next_start_at)
    SELECT n.kind, n.subject, max(n.next_start_at)
    FROM (SELECT count(*) AS days FROM used) AS after
    CROSS JOIN unnest($19::uuid[], $20::text[], $21::text[], $22::timestamptz[])
               AS n (attempt_id, kind, subject, next_start_at)
    JOIN inserted AS i ON i.id = n.attempt_id
    GROUP BY 1, 2 ORDER BY 1, 2
    ON CONFLICT (kind, subject) DO UPDATE SET next_start_at = greatest(p.next_start_at, EXCLUDED.next_start_at)
)
SELECT id, true AS is_attempt FROM inserted UNION ALL SELECT id, false FROM reserved

-- name: write_refusals
-- Refused leads: they end, or get their new due time, and the reason is stored. Their rows are locked since the first step. A
-- statement of its own, because most intents refuse nothing.
-- $1-$3 leads that end: lead, outcome, reason   $4-$6 leads that move: lead, due, end of the window
-- $7-$11 decisions: lead, reason, merchant, subject, until
WITH ended AS (
    UPDATE leads AS l
    SET status = 'FINISHED', outcome = e.outcome, outcome_reason = e.reason, version = version + 1,
        finished_at = clock_timestamp(), updated_at = clock_timestamp()
    FROM unnest($1::uuid[], $2::text[], $3::text[]) AS e (id, outcome, reason)
    WHERE l.id = e.id
), moved AS (
    UPDATE leads AS l
    SET due_at = v.due_at, closes_at = v.closes_at, version = version + 1, updated_at = clock_timestamp()
    FROM unnest($4::uuid[], $5::timestamptz[], $6::timestamptz[]) AS v (id, due_at, closes_at)
    WHERE l.id = v.id
    RETURNING l.id, l.version, l.priority, l.due_at, l.closes_at, l.pool_id, l.reseller_id, l.merchant_id, l.campaign_id,
          l.phone
), refusals AS (
    INSERT INTO decisions AS d (lead_id, reason, merchant_id, subject, until)
    SELECT * FROM unnest($7::uuid[], $8::text[], $9::text[], $10::text[], $11::timestamptz[])
    ON CONFLICT (lead_id, reason) DO UPDATE
    SET times = d.times + 1, last_at = clock_timestamp(), until = EXCLUDED.until, subject = EXCLUDED.subject
)
SELECT v.*, p.overflow_pool_id, p.overflow_after_s, CASE WHEN p.region_affinity THEN phone_region(v.phone) END AS region
FROM moved AS v JOIN pools AS p ON p.id = v.pool_id
