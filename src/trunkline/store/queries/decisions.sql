-- name: history
-- Why a lead was not called, newest first.
SELECT reason, subject, times, first_at, last_at, until FROM decisions WHERE lead_id = $1 ORDER BY last_at DESC

-- name: standing
-- A lead as the gates see it, without a lock: what the intent would read now, and its surroundings. Its numbers are those of
-- its pool and of its overflow pool. The best one to dial from stands for all of them: not stopped, not in a cooldown, then
-- with a free channel.
SELECT l.id, l.phone, l.timezone, l.merchant_id, l.reseller_id, l.campaign_id, l.attempt_count, l.max_attempts, l.due_at,
       l.closes_at, l.expires_at, l.status, l.outcome, l.outcome_reason, l.pool_id, o.overflow_pool_id,
       least(m.max_concurrent, b.live_max) AS merchant_max_concurrent, l.no_agent_count, b.opens_at AS agents_from,
       'elsewhere' IN (m.agents, o.agents) AS are_agents_elsewhere, n.carrier, n.account,
       clock_timestamp() AS now, NULL::text AS halted, NULL::text AS payload,
       listed.level AS listed_by, listed.reason AS listed_reason, listed.created_by AS listed_actor,
       listed.expires_at AS listed_until,
       (SELECT p.checks_hash FROM prechecks AS p
        WHERE p.lead_id = l.id AND p.passed_until > clock_timestamp()) AS passed_checks,
       n.id AS number_id, n.e164, n.max_channels, n.starts_per_s, n.number_pool_id,
       pool.numbers, pool.usable, pool.free, pool.unpaired,
       -- As in the intent: another system has called it, or still does.
       EXISTS (SELECT FROM cutovers AS c
               WHERE c.merchant_id = l.merchant_id AND l.due_at < coalesce(c.since, 'infinity')) AS is_cut_over
FROM leads AS l
JOIN merchants AS m ON m.id = l.merchant_id
JOIN pools AS o ON o.id = l.pool_id
CROSS JOIN LATERAL (
    SELECT count(*)::int AS numbers, (count(*) FILTER (WHERE NOT is_stopped))::int AS usable,
           (count(*) FILTER (WHERE NOT is_stopped AND NOT is_full))::int AS free,
           (count(*) FILTER (WHERE NOT is_stopped AND NOT is_paired))::int AS unpaired
    FROM (SELECT EXISTS (SELECT FROM controls AS c
                         WHERE (c.ends_at IS NULL OR c.ends_at > clock_timestamp())
                           AND ((c.scope = 'number' AND c.subject = p.id::text)
                                OR (c.scope = 'carrier' AND c.subject = p.carrier))) AS is_stopped,
                 (SELECT count(*) FROM attempts AS a
                  WHERE a.number_id = p.id AND a.holds_channel) >= p.max_channels AS is_full,
                 EXISTS (SELECT FROM attempts AS a
                         WHERE a.to_phone = l.phone AND a.from_phone = p.e164 AND a.direction = 'outbound'
                           AND a.state IN ('dialing', 'in_doubt', 'accepted', 'ringing', 'answered')) AS is_paired
          FROM numbers AS p
          WHERE p.pool_id IN (l.pool_id, o.overflow_pool_id) AND p.status = 'active' AND p.max_channels > 0
          LIMIT 1000) AS each) AS pool
LEFT JOIN LATERAL (
    SELECT p.id, p.e164, p.carrier, p.account, p.max_channels, p.starts_per_s, p.pool_id AS number_pool_id
    FROM numbers AS p
    WHERE p.pool_id IN (l.pool_id, o.overflow_pool_id) AND p.status = 'active' AND p.max_channels > 0
    ORDER BY EXISTS (SELECT FROM controls AS c
                     WHERE (c.ends_at IS NULL OR c.ends_at > clock_timestamp())
                       AND ((c.scope = 'number' AND c.subject = p.id::text)
                            OR (c.scope = 'carrier' AND c.subject = p.carrier))),
             EXISTS (SELECT FROM cooldowns AS c
                     WHERE c.carrier = p.carrier AND c.account = p.account AND c.refused_at IS NOT NULL
                       AND (c.scope = 'account' OR (c.scope = 'number' AND c.subject = p.id::text))),
             (SELECT count(*) FROM attempts AS a WHERE a.number_id = p.id AND a.holds_channel) >= p.max_channels, p.id
    LIMIT 1) AS n ON true
LEFT JOIN LATERAL (
    SELECT CASE WHEN d.merchant_id IS NOT NULL THEN 'merchant'
                WHEN d.reseller_id IS NOT NULL THEN 'reseller' ELSE 'platform' END AS level,
           d.reason, d.created_by, d.expires_at
    FROM do_not_call AS d
    WHERE d.phone = l.phone AND (d.expires_at IS NULL OR d.expires_at > clock_timestamp())
      AND (d.reseller_id IS NULL
           OR (d.reseller_id = l.reseller_id AND (d.merchant_id IS NULL OR d.merchant_id = l.merchant_id)))
    LIMIT 1) AS listed ON true
LEFT JOIN LATERAL no_agent_brake(l.merchant_id) AS b ON true
WHERE l.id = $3 AND ($1::text IS NULL OR l.reseller_id = $1) AND ($2::text IS NULL OR l.merchant_id = $2)

-- name: stops
-- The stops of a lead: the platform, its reseller, its merchant, its campaign; and of the numbers that it could be dialled
-- from. Those that last longest come first.
-- $1 reseller  $2 merchant  $3 merchant/campaign  $4-$5 its pools
SELECT c.scope, c.set_by, c.reason, c.changed_by, c.ends_at
FROM controls AS c
WHERE (c.ends_at IS NULL OR c.ends_at > clock_timestamp())
  AND (c.scope IN ('kill_switch', 'promoter') OR (c.scope = 'reseller' AND c.subject = $1)
       OR (c.scope = 'merchant' AND c.subject = $2) OR (c.scope = 'campaign' AND c.subject = $3)
       OR (c.scope IN ('number', 'carrier')
           AND EXISTS (SELECT FROM numbers AS n
                       WHERE n.pool_id IN ($4, $5) AND n.status = 'active' AND n.max_channels > 0
                         AND c.subject = CASE c.scope WHEN 'number' THEN n.id::text ELSE n.carrier END)))
ORDER BY c.scope = 'kill_switch' DESC, c.scope = 'promoter' DESC, c.ends_at DESC NULLS FIRST, c.scope
LIMIT 100
