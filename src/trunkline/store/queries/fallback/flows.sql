-- The next flows of each pool, after the given one, in their own order, each with the oldest of its due leads that may be
-- taken. A flow that is stopped shows none, and neither does one of which nothing is due. Jumps from flow to flow in the
-- index, so what is read depends on $4 and on how many leads of a flow are set aside, never on how many wait. Whether a
-- flow is stopped is asked once for it, apart from its leads: asked beside them, it would be asked for each. Whether a lead
-- is due is asked of the first one alone: asked of all, a flow of which none is due would be read to its end.
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
