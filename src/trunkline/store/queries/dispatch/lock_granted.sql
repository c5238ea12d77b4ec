-- First step of the intent: lock, in id order, the leads that are still as their grants say, whose due time comes within
-- a second (the call leaves then, not before) and whose grant is younger than 3 s (a grant that its dialer slept over
-- belongs to somebody else by now). What runs out by then does not count any more.
-- A lead that somebody else is changing is skipped, not waited for: it must not hold up the rest of its batch.
-- The first thing to run is `bounds`: no lead is looked for before it is there. It sets what holds for this transaction and
-- ends with it, so that a pooler's next client does not inherit it: the two time-outs, and how the next statements are
-- planned, those of a function too. They are planned once (anew each time costs 1 ms of a dial's 2), and row by row
-- through indexes, since a plan that was made while the tables were small would read them whole when they are large.
-- This one is planned before that is set, so each lead has a query of its own, and its status is hidden from the planner:
-- on a small table the index of all that wait looks as cheap as the primary key, and is read from end to end ever after.
-- How many leads there are is hidden too, by a sub-select: a plan for one would always seem cheaper than that for any
-- number, and be made anew each time (0.7 ms).
-- Carrier and account of the granted number are read on the way, unlocked: they name the account that is locked next.
-- $1 leads  $2 versions  $3 when each was granted, in ms, or NULL  $4 their numbers
-- $5 lock time-out in ms  $6 transaction time-out in ms  $7-$8 the database that the caller knows, and how far it had come
WITH bounds AS MATERIALIZED (
    SELECT set_config('lock_timeout', $5::text, true), set_config('transaction_timeout', $6::text, true),
           set_config('plan_cache_mode', 'force_generic_plan', true) AS plans, set_config('enable_seqscan', 'off', true),
           set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true)
)
SELECT l.id, l.phone, l.timezone, l.merchant_id, l.reseller_id, l.campaign_id, l.attempt_count, l.max_attempts,
       l.due_at, l.closes_at, l.pool_id, o.overflow_pool_id, l.no_agent_count, b.opens_at AS agents_from,
       -- While people of this merchant find no agent, one call at a time shows whether they do again.
       least(m.max_concurrent, b.live_max) AS merchant_max_concurrent, n.carrier, n.account, clock_timestamp() AS now,
       -- Is starting calls allowed at all, and is this that database, not an earlier moment of it? Asked here, where no
       -- process's view of the controls can be late.
       coalesce((SELECT c.scope FROM controls AS c
                 WHERE c.scope IN ('kill_switch', 'promoter') AND (c.ends_at IS NULL OR c.ends_at > clock_timestamp())
                 ORDER BY c.scope LIMIT 1),
                (SELECT 'database_went_back' FROM continuity AS c
                 WHERE $7::uuid IS NOT NULL AND (c.installation IS DISTINCT FROM $7 OR c.beat < $8::bigint)),
                -- Of a campaign too: its first leads may come in the moment in which it is made, and a draft calls nobody.
                (SELECT c.scope FROM controls AS c
                 WHERE l.campaign_id IS NOT NULL AND c.scope = 'campaign'
                   AND c.subject = l.merchant_id || '/' || l.campaign_id
                   AND (c.ends_at IS NULL OR c.ends_at > clock_timestamp())
                 LIMIT 1)) AS halted,
       (SELECT CASE WHEN d.merchant_id IS NOT NULL THEN 'merchant'
                    WHEN d.reseller_id IS NOT NULL THEN 'reseller' ELSE 'platform' END
        FROM do_not_call AS d
        WHERE d.phone = l.phone AND (d.expires_at IS NULL OR d.expires_at > greatest(clock_timestamp(), l.due_at))
          AND (d.reseller_id IS NULL
               OR (d.reseller_id = l.reseller_id AND (d.merchant_id IS NULL OR d.merchant_id = l.merchant_id)))
        LIMIT 1) AS listed_by,
       (SELECT p.checks_hash FROM prechecks AS p
        WHERE p.lead_id = l.id AND p.passed_until > greatest(clock_timestamp(), l.due_at)) AS passed_checks,
       -- Vapi's own assistant talks, and knows only what comes with the request. Other agents ask for their context.
       CASE WHEN n.carrier = 'vapi' THEN l.payload::text END AS payload,
       'elsewhere' IN (m.agents, o.agents) AS are_agents_elsewhere
FROM bounds
CROSS JOIN (SELECT * FROM unnest((SELECT $1::uuid[]), $2::int[], $3::bigint[], $4::uuid[])
                          AS g (lead_id, version, granted_ms, number_id)
            ORDER BY lead_id) AS g
CROSS JOIN LATERAL (
    SELECT l.id, l.phone, l.timezone, l.merchant_id, l.reseller_id, l.campaign_id, l.attempt_count, l.max_attempts,
           l.due_at, l.closes_at, l.pool_id, l.payload, l.no_agent_count FROM leads AS l
    WHERE bounds.plans IS NOT NULL AND l.id = g.lead_id AND l.version = g.version
      AND l.status || '' = 'BACKLOG' AND l.due_at <= clock_timestamp() + interval '1 second'
      AND (g.granted_ms IS NULL OR to_timestamp(g.granted_ms / 1000.0) > clock_timestamp() - interval '3 seconds')
    LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED) AS l
JOIN merchants AS m ON m.id = l.merchant_id
JOIN pools AS o ON o.id = l.pool_id
LEFT JOIN numbers AS n ON n.id = g.number_id
LEFT JOIN LATERAL no_agent_brake(l.merchant_id) AS b ON true
