-- name: apply_facts
-- The facts from the carrier's events, many attempts at once. Facts are only ever added: a known time stays. How and when a
-- call ended is written as it was computed under the locks: before the end, these columns hold why the attempt was in doubt,
-- or when it was written off, and that is not how the call ended.
UPDATE attempts AS a
SET state = f.state,
    holds_channel = a.holds_channel AND f.state <> 'ended',
    carrier_call_id = COALESCE(a.carrier_call_id, f.call_id),
    ringing_at = COALESCE(a.ringing_at, f.ringing_at),
    answered_at = COALESCE(a.answered_at, f.answered_at),
    ended_at = f.ended_at,
    end_reason = f.end_reason,
    duration_s = f.duration_s,
    is_machine = f.is_machine,
    agent_joined = f.agent_joined,
    stream_began = f.stream_began,
    agent = f.agent,
    carrier_cost_micros = COALESCE(a.carrier_cost_micros, f.cost_micros),
    carrier_cost_currency = COALESCE(a.carrier_cost_currency, f.cost_currency)
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::timestamptz[], $5::timestamptz[], $6::timestamptz[], $7::text[],
            $8::int[], $9::boolean[], $10::boolean[], $11::boolean[], $12::text[], $13::bigint[], $14::text[])
     AS f (id, state, call_id, ringing_at, answered_at, ended_at, end_reason, duration_s, is_machine, agent_joined,
           stream_began, agent, cost_micros, cost_currency)
WHERE a.id = f.id

-- name: check_later
-- Nothing to do yet: check again later, counted from now.
UPDATE attempts AS a
SET next_check_at = clock_timestamp() + make_interval(secs => c.delay_s), doubt_checks = a.doubt_checks + c.checked
FROM unnest($1::uuid[], $2::float8[], $3::smallint[]) AS c (id, delay_s, checked)
WHERE a.id = c.id

-- name: claim_checks
-- Attempts to check now. A claim moves `next_check_at` on, which is the lease: if the checker dies, the next one checks after
-- $2 seconds. Accounts that are slow to answer are left out: others do not wait for them.
UPDATE attempts AS a
SET next_check_at = clock_timestamp() + make_interval(secs => $2)
FROM (SELECT id FROM attempts
      WHERE holds_channel AND next_check_at <= clock_timestamp()
        AND (carrier, account) NOT IN (SELECT * FROM unnest($3::text[], $4::text[]))
      ORDER BY next_check_at LIMIT $1
      FOR NO KEY UPDATE SKIP LOCKED) AS due
WHERE a.id = due.id
RETURNING a.id, a.lead_id, a.state, a.carrier, a.account, a.carrier_call_id, a.to_phone, a.from_phone, a.intent_at,
          a.doubt_checks,
          -- Whether it would ring outside of its window, if it still waits at the carrier.
          coalesce((SELECT l.closes_at <= clock_timestamp() FROM leads AS l WHERE l.id = a.lead_id), false) AS is_closed,
          extract(epoch FROM clock_timestamp() - a.send_at)::float8 AS age_s

-- name: count_again
-- Leads that wait because their last call seemed to have no agent, and that had one: its report came late. They get the state
-- of a live call, so that its end can be decided again. The new version makes every entry and grant of the retry stale.
UPDATE leads
SET status = 'PROCESSING', attempt_count = attempt_count + 1, no_agent_count = no_agent_count - 1, version = version + 1,
    updated_at = clock_timestamp()
WHERE id = ANY($1::uuid[]) AND status = 'BACKLOG' AND no_agent_count > 0

-- name: mark_in_doubt
-- It is unknown whether these were dialled: the reply to their request is overdue. They keep their channel.
UPDATE attempts
SET state = 'in_doubt', end_reason = 'no_reply', next_check_at = clock_timestamp()
WHERE id = ANY($1::uuid[]) AND state = 'dialing'
RETURNING id

-- name: finish_leads
-- The end of leads. Guarded by status: a lead ends once.
UPDATE leads AS l
SET status = 'FINISHED', outcome = f.outcome, outcome_reason = f.reason, version = version + 1,
    finished_at = clock_timestamp(), updated_at = clock_timestamp()
FROM unnest($1::uuid[], $2::text[], $3::text[]) AS f (id, outcome, reason)
WHERE l.id = f.id AND l.status = 'PROCESSING'
RETURNING l.id

-- name: free_channel
-- A call in state `unknown` cannot last any longer: its channel is free.
UPDATE attempts SET holds_channel = false, next_check_at = NULL WHERE id = $1 AND state = 'unknown'
RETURNING id

-- name: write_off
-- The end of an in-doubt attempt without a call: `absent` frees the channel at once, `unknown` keeps it for as long as a call that was
-- placed after all could last ($4 seconds). Guarded by the state: a webhook that came meanwhile wins.
UPDATE attempts
SET state = $2, end_reason = $3, ended_at = clock_timestamp(), holds_channel = $2 = 'unknown',
    next_check_at = CASE WHEN $2 = 'unknown' THEN clock_timestamp() + make_interval(secs => $4) END
WHERE id = $1 AND state = 'in_doubt'
RETURNING id

-- name: hold_again
-- A call that reappeared is live, so it needs a channel, and the checker checks it until it ends. It gets the lowest free
-- channel, even above the maximum: the number then takes no further call before it has room; an `unknown` one may still have
-- its own. $2 is a channel number that no other call takes, for when others are quicker again and again; NULL: the lowest.
UPDATE attempts AS a
SET holds_channel = true, next_check_at = clock_timestamp(),
    channel_no = CASE WHEN a.holds_channel THEN a.channel_no ELSE coalesce($2::int, (SELECT min(channel.no)
                  FROM generate_series(1, 1 + (SELECT count(*) FROM attempts AS h
                                               WHERE h.number_id = a.number_id AND h.holds_channel)) AS channel (no)
                  WHERE NOT EXISTS (SELECT FROM attempts AS h
                                    WHERE h.number_id = a.number_id AND h.channel_no = channel.no AND h.holds_channel))) END
WHERE a.id = $1

-- name: mark_absent
-- The carrier was queried again about an `unknown` attempt, and has no such call: no call can be live on its channel, and no
-- person was called, so it does not count against its lead. Guarded by the state: a webhook that came meanwhile wins. The
-- lead's outcome stays. The caller has locked both.
WITH marked AS (
    UPDATE attempts
    SET state = 'absent', end_reason = 'not_in_call_list', holds_channel = false, next_check_at = NULL
    WHERE id = $1 AND state = 'unknown'
    RETURNING id, lead_id
), uncounted AS (
    UPDATE leads AS l
    SET attempt_count = greatest(0, l.attempt_count - 1), version = l.version + 1, updated_at = clock_timestamp()
    FROM marked WHERE l.id = marked.lead_id
)
SELECT id FROM marked

-- name: known_call_ids
-- Which of these calls already belong to an attempt.
SELECT carrier_call_id FROM attempts WHERE carrier = $1 AND carrier_call_id = ANY($2::text[])

-- name: lock
-- Lock attempts and, before them, their leads: the function says in which order, and how everything after it is planned.
SELECT attempts_lock($1)

-- name: owner
-- The owner of a call, and whether its agents are external. Read when it is answered without a reserved agent. Where that was
-- by choice, also both phones and the merchant's name: the message of an abandoned call names the caller.
SELECT a.merchant_id, coalesce('elsewhere' IN (m.agents, p.agents), false) AS are_agents_elsewhere,
       a.overdial_group IS NOT NULL AS is_overdialled, a.reseller_id, a.campaign_id,
       coalesce(m.name, '') AS merchant_name, a.to_phone, a.from_phone
FROM attempts AS a
LEFT JOIN merchants AS m ON m.id = a.merchant_id
LEFT JOIN leads AS l ON l.id = a.lead_id
LEFT JOIN pools AS p ON p.id = l.pool_id
WHERE a.id = $1

-- name: read
-- Attempts with what their leads still allow. Read under the locks, in a later statement than the one that took them.
SELECT a.id, a.lead_id, a.number_id, a.attempt_no, a.carrier, a.account, a.holds_channel, a.state, a.carrier_call_id AS call_id,
       a.ringing_at, a.answered_at, a.ended_at, a.end_reason, a.duration_s, a.is_machine, a.agent_joined, a.stream_began,
       a.agent, a.carrier_cost_micros, a.carrier_cost_currency,
       a.reseller_id, a.merchant_id, a.campaign_id, a.to_phone AS phone, a.reserved_micros, l.timezone,
       -- The time whose day it was counted under: a call is prepared a little before its time.
       greatest(a.intent_at, a.lead_due_at) AS counted_at,
       -- By their numbers: the column `ordinal` says why by no clock.
       NOT EXISTS (SELECT FROM attempts AS n
                   WHERE n.lead_id = a.lead_id AND (n.ordinal, n.intent_at) > (a.ordinal, a.intent_at)) AS is_newest,
       l.status AS lead_status, l.attempt_count, l.max_attempts, l.carrier_error_count, l.no_agent_count,
       l.outcome AS lead_outcome,
       l.cancel_requested_at IS NOT NULL AS is_cancelled, l.cancel_reason, a.hang_up_at IS NOT NULL AS hang_up_wanted,
       -- What the agent reported; `read_at` is the clock that a requested callback is counted from.
       r.attempt_id IS NOT NULL AS is_reported, r.disposition, r.opt_out, r.callback_at,
       clock_timestamp() AS read_at,
       -- Evidence of the agent that the call was assigned to. A heartbeat of another process of the same name is none.
       s.id IS NOT NULL AS is_allocated, s.begun_at, s.joined_at IS NOT NULL OR coalesce(s.call = ANY(p.named), false) AS has_joined,
       CASE WHEN s.joined_at IS NULL AND s.call <> ALL(p.named) THEN p.heard_at END AS unnamed_at,
       -- The carrier requested what follows the stream, and no agent had taken it.
       coalesce(s.joined_at IS NULL AND cardinality(s.lost_pods) > 0, false) AS was_refused,
       coalesce(a.lead_id IS NOT NULL AND a.intent_at > b.stops_until, false) AS is_probe
FROM attempts AS a
LEFT JOIN leads AS l ON l.id = a.lead_id
LEFT JOIN call_reports AS r ON r.attempt_id = a.id
LEFT JOIN allocations AS s ON s.id = a.id
LEFT JOIN pods AS p ON p.name = s.pod AND p.incarnation = s.incarnation
LEFT JOIN no_agent_brakes AS b ON b.merchant_id = a.merchant_id
WHERE a.id = ANY($1::uuid[])

-- name: retry_leads
-- The retry transaction: the only way back to BACKLOG. The new version makes every older grant and entry stale. An ended lead
-- comes back when its agent reported after the carrier: then it has not ended.
WITH retried AS (
UPDATE leads AS l
SET status = 'BACKLOG', due_at = r.due_at, closes_at = r.closes_at, version = version + 1,
    carrier_error_count = carrier_error_count + r.carrier_errors, attempt_count = attempt_count - r.uncounted,
    no_agent_count = no_agent_count + r.no_agents,
    outcome = NULL, outcome_reason = NULL, finished_at = NULL, updated_at = clock_timestamp()
FROM unnest($1::uuid[], $2::timestamptz[], $3::timestamptz[], $4::smallint[], $5::smallint[], $7::smallint[])
     AS r (id, due_at, closes_at, carrier_errors, uncounted, no_agents)
WHERE l.id = r.id AND l.status = $6
RETURNING l.id, l.version, l.priority, l.due_at, l.closes_at, l.pool_id, l.reseller_id, l.merchant_id, l.campaign_id,
          l.phone
)
SELECT r.*, p.overflow_pool_id, p.overflow_after_s, CASE WHEN p.region_affinity THEN phone_region(r.phone) END AS region
FROM retried AS r JOIN pools AS p ON p.id = r.pool_id

-- name: revise_leads
-- Changed outcomes of leads whose agents reported late. The time of the end stays.
UPDATE leads AS l
SET outcome = f.outcome, outcome_reason = f.reason, version = version + 1, updated_at = clock_timestamp()
FROM unnest($1::uuid[], $2::text[], $3::text[]) AS f (id, outcome, reason)
WHERE l.id = f.id AND l.status = 'FINISHED'

-- name: settle_costs
-- The cost of calls replaces the money that was reserved for them, in the days in which they began. Days in one order, after
-- the attempts, as in the intent.
-- $1-$4 attempts, their costs, and the merchants and days that pay
WITH cost AS (
    SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::date[]) AS c (id, micros, merchant_id, day)
), noted AS (
    UPDATE attempts AS a SET cost_micros = c.micros FROM cost AS c
    WHERE a.id = c.id AND a.cost_micros IS NULL
    RETURNING a.id, c.micros - a.reserved_micros AS more
)
INSERT INTO merchant_days AS d (merchant_id, day, attempts, spent_micros)
SELECT c.merchant_id, c.day, 0, sum(n.more)
FROM noted AS n JOIN cost AS c ON c.id = n.id
GROUP BY 1, 2 ORDER BY 1, 2
ON CONFLICT (merchant_id, day) DO UPDATE SET spent_micros = d.spent_micros + EXCLUDED.spent_micros

-- name: reattach_leads
-- Leads whose call was written off and had been placed after all: they are being called. An attempt that was `absent` was not
-- counted, and cost a carrier error: now it counts, and costs none. A lead that ended as UNKNOWN has not ended: the call's end
-- decides. A lead that has ended otherwise does not change. The new version makes every entry and grant of its retry stale.
-- $1 leads  $2 1 where the attempt was absent, else 0
UPDATE leads AS l
SET status = 'PROCESSING', attempt_count = l.attempt_count + t.uncounted,
    carrier_error_count = greatest(0, l.carrier_error_count - t.uncounted),
    outcome = NULL, outcome_reason = NULL, finished_at = NULL, version = l.version + 1, updated_at = clock_timestamp()
FROM unnest($1::uuid[], $2::smallint[]) AS t (id, uncounted)
WHERE l.id = t.id AND (l.status = 'BACKLOG' OR (l.status = 'FINISHED' AND l.outcome = 'UNKNOWN'))

-- name: unexplained
-- How often in a row leads were refused, or their calls never placed, for no known reason; and of several when the first was
-- sent. In a row: since the last call that a carrier accepted, and since a person had the lead called again.
-- $1 leads
SELECT q.lead_id, count(*) AS times, CASE WHEN count(*) > 1 THEN min(a.send_at) END AS first_at
FROM unnest($1::uuid[]) AS q (lead_id)
JOIN attempts AS a ON a.lead_id = q.lead_id
WHERE (a.state = 'absent' OR (a.state = 'rejected' AND a.end_reason LIKE 'refused_unknown:%'))
  AND a.ordinal > coalesce((SELECT max(t.ordinal) FROM attempts AS t
                            WHERE t.lead_id = q.lead_id AND t.state NOT IN ('rejected', 'absent')), 0)
  AND a.intent_at > coalesce((SELECT max(r.at) FROM lead_reopenings AS r WHERE r.lead_id = q.lead_id), '-infinity')
GROUP BY q.lead_id

-- name: unknown
-- An attempt in state `unknown`, for one more query to its carrier.
SELECT a.id, a.lead_id, a.state, a.carrier, a.account, a.carrier_call_id, a.to_phone, a.from_phone, a.intent_at, a.doubt_checks,
       false AS is_closed, extract(epoch FROM clock_timestamp() - a.intent_at)::float8 AS age_s
FROM attempts AS a
WHERE a.id = $1 AND a.state = 'unknown'

-- name: write_results
-- The carriers' responses, many at once: the function says how it is guarded, and why it is one.
SELECT id, state FROM attempts_answer($1, $2, $3, $4, $5)
