-- name: calls
-- Calls that hold a channel now, by state. As many rows are read as there are calls, never more than there are channels.
SELECT state, count(*)::int AS calls
FROM attempts
WHERE holds_channel AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)
GROUP BY state

-- name: channels
-- Channels of the tenant's own numbers: how many there are, how many are held. Shared numbers would show other tenants' calls.
SELECT coalesce(sum(n.max_channels), 0)::int AS capacity,
       coalesce(sum((SELECT count(*) FROM attempts AS a WHERE a.number_id = n.id AND a.holds_channel)), 0)::int AS held
FROM numbers AS n
WHERE n.status <> 'disabled'
  AND ($1::text IS NULL OR n.reseller_id = $1) AND ($2::text IS NULL OR n.merchant_id = $2)

-- name: holders
-- The holders of the channels of a number. On a number that is not the tenant's own, only the tenant's own calls.
SELECT a.channel_no, a.id AS attempt_id, a.lead_id, a.direction, a.merchant_id, a.to_phone, a.from_phone, a.state,
       a.carrier_call_id, a.intent_at AS held_since, a.answered_at, a.pod
FROM attempts AS a
WHERE a.number_id = $3 AND a.holds_channel
  AND ($1::text IS NULL OR a.reseller_id = $1) AND ($2::text IS NULL OR a.merchant_id = $2)
ORDER BY a.channel_no

-- name: lead_estimate
-- An estimate of the number of leads, from the last vacuum or analyze. Counting them would read every one. -1: none yet.
SELECT reltuples::bigint FROM pg_class WHERE oid = 'leads'::regclass

-- name: processes
-- The processes, their roles, and the age of their last heartbeat; and which of them leads. Names end in a slash and eight
-- random characters, which differ between the process and its lease.
SELECT p.id, p.roles, p.started_at, extract(epoch FROM clock_timestamp() - p.seen_at)::float8 AS silent_s,
       EXISTS (SELECT FROM leaders AS l
               WHERE l.expires_at > clock_timestamp() AND left(l.holder, -9) = left(p.id, -9)) AS is_leader
FROM processes AS p
ORDER BY p.id
LIMIT $1

-- name: queues
-- The flows with leads waiting for their turn now, the longest waiting first. Flows are found one by one through the index and
-- each is counted up to $4, so that a million leads cost no more than a few.
WITH RECURSIVE flows AS (
    (SELECT pool_id, merchant_id, coalesce(campaign_id, '00000000-0000-0000-0000-000000000000') AS campaign, reseller_id, 1 AS nth
     FROM leads WHERE status = 'BACKLOG'
     ORDER BY pool_id, merchant_id, coalesce(campaign_id, '00000000-0000-0000-0000-000000000000') LIMIT 1)
    UNION ALL
    SELECT next.*, f.nth + 1 FROM flows AS f CROSS JOIN LATERAL (
        SELECT pool_id, merchant_id, coalesce(campaign_id, '00000000-0000-0000-0000-000000000000'), reseller_id
        FROM leads
        WHERE status = 'BACKLOG'
          AND (pool_id, merchant_id, coalesce(campaign_id, '00000000-0000-0000-0000-000000000000'))
              > (f.pool_id, f.merchant_id, f.campaign)
        ORDER BY pool_id, merchant_id, coalesce(campaign_id, '00000000-0000-0000-0000-000000000000') LIMIT 1
    ) AS next
    WHERE f.nth < $5
), heads AS (
    SELECT f.*, first.due_at
    FROM flows AS f CROSS JOIN LATERAL (
        SELECT l.due_at FROM leads AS l
        WHERE l.status = 'BACKLOG' AND l.pool_id = f.pool_id AND l.merchant_id = f.merchant_id
          AND coalesce(l.campaign_id, '00000000-0000-0000-0000-000000000000') = f.campaign
        ORDER BY l.due_at LIMIT 1) AS first
    WHERE ($1::text IS NULL OR f.reseller_id = $1) AND ($2::text IS NULL OR f.merchant_id = $2)
    ORDER BY first.due_at
    LIMIT $3
)
SELECT h.merchant_id, nullif(h.campaign, '00000000-0000-0000-0000-000000000000') AS campaign_id, h.pool_id AS pool, h.due_at AS first_due_at,
       counted.due, counted.waiting
FROM heads AS h
-- In the order in which they are due: due leads are among the first.
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE first.due_at <= clock_timestamp())::int AS due, count(*)::int AS waiting
    FROM (
        SELECT l.due_at FROM leads AS l
        WHERE l.status = 'BACKLOG' AND l.pool_id = h.pool_id AND l.merchant_id = h.merchant_id
          AND coalesce(l.campaign_id, '00000000-0000-0000-0000-000000000000') = h.campaign
        ORDER BY l.due_at
        LIMIT $4) AS first) AS counted
ORDER BY h.due_at

-- name: paces
-- How fast calls of flows have ended recently: calls of the last $4 seconds, and the period. Found as by `recent`, and as far
-- back as a call may last: at most $6 rows, of the last $5 seconds. A flow that began within the period is measured from its
-- first call on. A call belongs to a flow if its number is in the flow's pool, or in its overflow pool.
-- $1-$3 the flows: pools, merchants, campaigns
WITH newest AS MATERIALIZED (
    SELECT direction, merchant_id, campaign_id, number_id, send_at, ended_at
    FROM attempts
    WHERE id >= (SELECT (lpad(to_hex((extract(epoch FROM clock_timestamp() - make_interval(secs => $5)) * 1000)::bigint),
                              12, '0') || '70008000000000000000')::uuid)
    ORDER BY id DESC
    LIMIT $6
)
SELECT f.pool_id, f.merchant_id, f.campaign_id,
       count(*) FILTER (WHERE n.ended_at > clock_timestamp() - make_interval(secs => $4))::int AS ended,
       least($4, greatest(1, extract(epoch FROM clock_timestamp() - min(n.send_at))))::float8 AS over_s
FROM unnest($1::text[], $2::text[], $3::uuid[]) AS f (pool_id, merchant_id, campaign_id)
JOIN pools AS p ON p.id = f.pool_id
JOIN numbers AS number ON number.pool_id IN (p.id, p.overflow_pool_id)
JOIN newest AS n ON n.number_id = number.id AND n.merchant_id = f.merchant_id AND n.campaign_id IS NOT DISTINCT FROM f.campaign_id
WHERE n.direction = 'outbound'
GROUP BY f.pool_id, f.merchant_id, f.campaign_id

-- name: recent
-- The dials of the last $3 seconds: by slices of $4 seconds, and by how they ended. Ids are UUIDv7, so the primary key finds
-- the newest; at most $5 rows are read, and `since` says how far back they reach. 30 s more than the window are read, for
-- dialers whose clocks run behind. The time is read once, in a query of its own: read per row, it could not be looked up in an
-- index. An answered call without an agent ended so, whatever the carrier reports; `busy` is an engaged line. Lateness counts
-- from the time when all that a call needs was available. Endings are counted apart from slices: lateness is sorted once, not
-- twice.
WITH newest AS MATERIALIZED (
    SELECT reseller_id, merchant_id, send_at, state, CASE WHEN agent = 'none' THEN 'no_agent' ELSE end_reason END AS end_reason,
           extract(epoch FROM send_at - coalesce(ready_at, lead_due_at))::float8 AS late_s
    FROM attempts
    WHERE id >= (SELECT (lpad(to_hex((extract(epoch FROM clock_timestamp() - make_interval(secs => $3 + 30)) * 1000)::bigint),
                              12, '0') || '70008000000000000000')::uuid)
    ORDER BY id DESC
    LIMIT $5
), reach AS MATERIALIZED (
    SELECT CASE WHEN count(*) < $5 THEN clock_timestamp() - make_interval(secs => $3) ELSE min(send_at) END AS since
    FROM newest
), seen AS MATERIALIZED (
    SELECT date_bin(make_interval(secs => $4), send_at, '2000-01-01Z') AS slice, state, end_reason, late_s
    FROM newest
    WHERE send_at >= (SELECT since FROM reach)
      AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)
)
SELECT slice, NULL::text AS ending, true AS is_slice, count(*)::int AS calls,
       percentile_cont(ARRAY[0.5, 0.99]) WITHIN GROUP (ORDER BY late_s) AS lateness_s, (SELECT since FROM reach) AS since
FROM seen
GROUP BY slice
UNION ALL
SELECT NULL, coalesce(CASE WHEN state = 'ended' THEN end_reason END, state), false, count(*)::int, NULL, (SELECT since FROM reach)
FROM seen
WHERE state IN ('ended', 'rejected', 'absent', 'unknown')
GROUP BY 2
ORDER BY 1, 2
