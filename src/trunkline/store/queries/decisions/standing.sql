-- A lead as the gates see it, without a lock: what the intent would read of it now, and what stands around it.
SELECT l.id, l.phone, l.timezone, l.merchant_id, l.reseller_id, l.campaign_id, l.attempt_count, l.max_attempts, l.due_at,
       l.closes_at, l.status, l.outcome, l.outcome_reason, l.pool_id, NULL::text AS overflow_pool_id,
       least(m.max_concurrent, b.live_max) AS merchant_max_concurrent, l.no_agent_count, b.opens_at AS agents_from,
       'elsewhere' IN (m.agents, o.agents) AS are_agents_elsewhere, n.carrier, n.account,
       clock_timestamp() AS now, NULL::text AS halted, NULL::text AS payload,
       (SELECT CASE WHEN d.merchant_id IS NOT NULL THEN 'merchant'
                    WHEN d.reseller_id IS NOT NULL THEN 'reseller' ELSE 'platform' END
        FROM do_not_call AS d
        WHERE d.phone = l.phone AND (d.expires_at IS NULL OR d.expires_at > clock_timestamp())
          AND (d.reseller_id IS NULL
               OR (d.reseller_id = l.reseller_id AND (d.merchant_id IS NULL OR d.merchant_id = l.merchant_id)))
        LIMIT 1) AS listed_by,
       (SELECT p.checks_hash FROM prechecks AS p
        WHERE p.lead_id = l.id AND p.passed_until > clock_timestamp()) AS passed_checks,
       (SELECT a.id FROM attempts AS a
        WHERE a.lead_id = l.id AND a.state IN ('dialing', 'in_doubt', 'accepted', 'ringing', 'answered')) AS live_attempt,
       n.id AS number_id, n.e164, n.max_channels, n.starts_per_s,
       pool.channels, pool.held
FROM leads AS l
JOIN merchants AS m ON m.id = l.merchant_id
JOIN pools AS o ON o.id = l.pool_id
CROSS JOIN LATERAL (
    SELECT coalesce(sum(p.max_channels), 0)::int AS channels,
           (SELECT count(*) FROM attempts AS a JOIN numbers AS h ON h.id = a.number_id
            WHERE h.pool_id = l.pool_id AND a.holds_channel)::int AS held
    FROM numbers AS p WHERE p.pool_id = l.pool_id AND p.status = 'active') AS pool
-- Any number that it could be dialled from stands for all of them.
LEFT JOIN LATERAL (
    SELECT * FROM numbers AS p WHERE p.pool_id = l.pool_id AND p.status = 'active' AND p.max_channels > 0
    ORDER BY p.id LIMIT 1) AS n ON true
LEFT JOIN LATERAL no_agent_brake(l.merchant_id) AS b ON true
WHERE l.id = $3 AND ($1::text IS NULL OR l.reseller_id = $1) AND ($2::text IS NULL OR l.merchant_id = $2)
