-- name: bounds
-- First in the transaction of a walk: a time-out, and how the next statements are planned. It ends with the transaction, so a
-- pooler's next client does not inherit it. Plans are made once for a connection, often while the tables are small: so the
-- planner is left one way, row by row in the order of an index, which stays right however the tables grow.
-- $1 the time-out in ms
SELECT set_config('statement_timeout', $1::text, true), set_config('plan_cache_mode', 'force_generic_plan', true),
       set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
       set_config('enable_sort', 'off', true), set_config('jit', 'off', true)

-- name: channels
-- The next numbers of each pool, after the given one and round to it again, each with some free channels. A number that is
-- stopped, in a cooldown or not active has none. Nothing is locked: the index of channels decides.
-- At most 64 channels of a number are checked; of more than that, as many in a row from a random start, so that each is found
-- some time. Filters come after the limit: how many numbers are read depends on nothing but $3. The orders, and keys that are
-- compared instead of equal, leave one index each: others seem as good while the tables are small.
-- $1 pools  $2 the last number of each  $3 numbers of each pool  $4 channels of each number
-- $5 deferred numbers  $6 numbers whose accounts are deferred  $7 accounts that are left out: carrier/account
WITH resting AS MATERIALIZED (
    SELECT r.carrier, r.account FROM unnest($6::uuid[]) AS of (id)
    CROSS JOIN LATERAL (SELECT carrier, account FROM numbers WHERE id >= of.id AND id <= of.id ORDER BY id LIMIT 1) AS r
)
SELECT p.pool_id, n.id AS number_id,
       CASE WHEN n.status = 'active' AND n.id <> ALL($5::uuid[]) AND n.carrier || '/' || n.account <> ALL($7::text[])
                 AND NOT EXISTS (SELECT FROM resting AS r WHERE r.carrier = n.carrier AND r.account = n.account)
                 AND NOT EXISTS (SELECT FROM controls AS c WHERE c.scope = 'number' AND c.subject = n.id::text
                                   AND (c.ends_at IS NULL OR c.ends_at > clock_timestamp()))
                 AND NOT EXISTS (SELECT FROM controls AS c WHERE c.scope = 'carrier' AND c.subject = n.carrier
                                   AND (c.ends_at IS NULL OR c.ends_at > clock_timestamp()))
            THEN ARRAY(SELECT channel.no
                       FROM generate_series(n.first_no, least(n.first_no + 63, n.max_channels)) AS channel (no)
                       WHERE channel.no <> ALL(ARRAY(
                           SELECT a.channel_no FROM attempts AS a
                           WHERE a.number_id = n.id AND a.holds_channel
                             AND a.channel_no BETWEEN n.first_no AND n.first_no + 63
                           ORDER BY a.number_id, a.channel_no))
                       LIMIT $4)
            ELSE '{}' END AS free
FROM unnest($1::text[], $2::uuid[]) AS p (pool_id, last_id)
CROSS JOIN LATERAL (
    SELECT e.*, 1 + floor(random() * greatest(0, e.max_channels - 63))::int AS first_no
    FROM ((SELECT id, carrier, account, status, max_channels FROM numbers
           WHERE (pool_id, id) > (p.pool_id, p.last_id) AND pool_id <= p.pool_id ORDER BY pool_id, id LIMIT $3)
          UNION ALL
          (SELECT id, carrier, account, status, max_channels FROM numbers
           WHERE pool_id >= p.pool_id AND (pool_id, id) <= (p.pool_id, p.last_id) ORDER BY pool_id, id LIMIT $3)) AS e
    ORDER BY e.id <= p.last_id, e.id
    LIMIT $3) AS n

-- name: flows
-- The next flows of each pool, after the given one, in their own order, each with the oldest of its due leads that may be
-- taken. A stopped flow has none, and neither has one without a due lead. Jumps from flow to flow in the index, so the cost
-- depends on $4 and on how many leads of a flow are deferred, never on how many wait. Whether a flow is stopped is evaluated
-- once, apart from its leads: beside them, it would be evaluated for each. Whether a lead is due is evaluated for the first
-- one alone: for all, a flow without a due lead would be read to its end.
-- $1 pools  $2-$3 the last flow of each: merchant, campaign  $4 flows of each pool  $5 leads that are not to be taken
SELECT p.pool_id, f.merchant_id, f.campaign, f.reseller_id, head.id, head.version, head.due_at,
       (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS granted_ms
FROM unnest($1::text[], $2::text[], $3::uuid[]) AS p (pool_id, last_merchant, last_campaign)
CROSS JOIN LATERAL (
    WITH RECURSIVE walk AS (
        SELECT p.last_merchant AS merchant_id, p.last_campaign AS campaign, NULL::text AS reseller_id
        UNION ALL
        SELECT next.* FROM walk AS w CROSS JOIN LATERAL (
            SELECT l.merchant_id, coalesce(l.campaign_id, '00000000-0000-0000-0000-000000000000'), l.reseller_id
            FROM leads AS l
            WHERE l.status = 'BACKLOG' AND l.pool_id = p.pool_id
              AND (l.merchant_id, coalesce(l.campaign_id, '00000000-0000-0000-0000-000000000000'))
                  > (w.merchant_id, w.campaign)
            ORDER BY l.pool_id, l.merchant_id, coalesce(l.campaign_id, '00000000-0000-0000-0000-000000000000')
            LIMIT 1) AS next
    )
    SELECT w.*,
           EXISTS (SELECT FROM controls AS c WHERE c.scope = 'reseller' AND c.subject = w.reseller_id
                     AND (c.ends_at IS NULL OR c.ends_at > clock_timestamp()))
           OR EXISTS (SELECT FROM controls AS c WHERE c.scope = 'merchant' AND c.subject = w.merchant_id
                        AND (c.ends_at IS NULL OR c.ends_at > clock_timestamp()))
           OR EXISTS (SELECT FROM controls AS c
                      WHERE c.scope = 'campaign' AND c.subject = w.merchant_id || '/' || w.campaign
                        AND (c.ends_at IS NULL OR c.ends_at > clock_timestamp())) AS is_stopped
    FROM walk AS w OFFSET 1 LIMIT $4) AS f
LEFT JOIN LATERAL (
    SELECT first.* FROM (
        SELECT l.id, l.version, l.due_at FROM leads AS l
        WHERE NOT f.is_stopped AND l.status = 'BACKLOG' AND l.pool_id = p.pool_id AND l.merchant_id = f.merchant_id
          AND coalesce(l.campaign_id, '00000000-0000-0000-0000-000000000000') = f.campaign AND l.id <> ALL($5::uuid[])
        ORDER BY l.due_at, l.id
        LIMIT 1) AS first
    WHERE first.due_at <= clock_timestamp()) AS head ON true

-- name: pools
-- The next pools with waiting leads, after the given one and round to it again. Jumps from pool to pool in the index: a pool
-- of a million leads costs one step, like a pool of one. While everything is stopped there is none.
-- The second part of the step begins anew at the first pool; it gives a row only if the first part has none.
-- $1 the last pool, or ''  $2 how many
WITH RECURSIVE walk AS (
    SELECT 0 AS lap, $1::text AS pool_id
    UNION ALL
    SELECT next.lap, next.pool_id FROM walk AS w CROSS JOIN LATERAL (
        (SELECT w.lap, l.pool_id FROM leads AS l
         WHERE l.status = 'BACKLOG' AND l.pool_id > w.pool_id
         ORDER BY l.pool_id, l.merchant_id LIMIT 1)
        UNION ALL
        (SELECT 1, l.pool_id FROM leads AS l
         WHERE w.lap = 0 AND l.status = 'BACKLOG'
           AND (SELECT later.pool_id FROM leads AS later WHERE later.status = 'BACKLOG' AND later.pool_id > w.pool_id
                ORDER BY later.pool_id, later.merchant_id LIMIT 1) IS NULL
         ORDER BY l.pool_id, l.merchant_id LIMIT 1)
        LIMIT 1) AS next
    WHERE next.lap = 0 OR next.pool_id <= $1::text
)
SELECT pool_id FROM walk
WHERE NOT EXISTS (SELECT FROM controls
                  WHERE scope IN ('kill_switch', 'promoter') AND (ends_at IS NULL OR ends_at > clock_timestamp()))
OFFSET 1 LIMIT $2
