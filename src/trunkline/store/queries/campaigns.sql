-- name: by_request
-- The campaign that an earlier request made.
SELECT *, pool_id AS pool, clock_timestamp() AS now FROM campaigns WHERE merchant_id = $1 AND request_id = $2

-- name: claim
-- One of them, locked until the transaction ends; no row if another process has it.
SELECT *, pool_id AS pool, clock_timestamp() AS now FROM campaigns WHERE id = $1 AND status <> 'STOPPED' FOR NO KEY UPDATE SKIP LOCKED

-- name: edit
-- Change the named fields of a locked campaign. The keeper applies them to waiting leads afterwards: see `give`.
-- $2 name  $3 pool  $4 priority  $5 attempts  $6, $7 whether the start was named, and it  $8, $9 likewise the end
-- $10, $11 likewise the webhook
UPDATE campaigns
SET name = coalesce($2, name), pool_id = coalesce($3, pool_id), priority = coalesce($4, priority),
    max_attempts = coalesce($5, max_attempts), starts_at = CASE WHEN $6 THEN $7 ELSE starts_at END,
    ends_at = CASE WHEN $8 THEN $9 ELSE ends_at END,
    reporting_webhook_url = CASE WHEN $10 THEN $11 ELSE reporting_webhook_url END, updated_at = clock_timestamp()
WHERE id = $1
RETURNING *, pool_id AS pool, clock_timestamp() AS now

-- name: fold_counts
-- Fold the counts of campaigns that changed: a row for each status and outcome, and for each of the last minutes, from which
-- the pace is read. Nothing is done while fewer than $1 rows wait. One statement deletes rows and inserts their sum:
-- concurrent readers see each count once.
WITH fresh AS MATERIALIZED (
    SELECT campaign_id, merchant_id FROM campaign_counts WHERE NOT is_folded ORDER BY at LIMIT $2
), deleted AS (
    DELETE FROM campaign_counts
    WHERE ctid = ANY (ARRAY(
        SELECT c.ctid FROM campaign_counts AS c
        WHERE (SELECT count(*) FROM fresh) >= $1
          AND (c.campaign_id, c.merchant_id) IN (SELECT campaign_id, merchant_id FROM fresh)
        FOR UPDATE SKIP LOCKED))
    RETURNING *
), folded AS (
    INSERT INTO campaign_counts
    SELECT campaign_id, merchant_id,
           CASE WHEN at > clock_timestamp() - interval '11 minutes' THEN date_trunc('minute', at) ELSE '-infinity' END,
           status, outcome, sum(leads), sum(attempts), sum(tried), min(first_finished_at), max(last_finished_at), true
    FROM deleted
    GROUP BY 1, 2, 3, 4, 5
    HAVING sum(leads) <> 0 OR sum(attempts) <> 0 OR sum(tried) <> 0
)
SELECT count(*) FROM deleted

-- name: get
-- A campaign that the tenant may see.
SELECT *, pool_id AS pool, clock_timestamp() AS now FROM campaigns
WHERE id = $3 AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)

-- name: give
-- Apply edited fields to some waiting leads, where they still have the campaign's former values: a row of the upload with a
-- priority of its own keeps it. They are locked in id order; one that a dialer has locked is left for the next time.
-- $1 campaign  $2 merchant  $3 how many  $4, $5, $6 pool, priority and attempts before  $7, $8, $9 and now
WITH candidates AS MATERIALIZED (
    SELECT id FROM leads
    WHERE campaign_id = $1 AND merchant_id = $2 AND status IN ('BACKLOG', 'PROCESSING')
      AND ((pool_id = $4 AND $4 <> $7) OR (priority = $5 AND $5 <> $8) OR (max_attempts = $6 AND $6 <> $9))
    ORDER BY id
    LIMIT $3
    FOR NO KEY UPDATE SKIP LOCKED
), updated AS (
    UPDATE leads AS l
    SET pool_id = CASE WHEN pool_id = $4 THEN $7 ELSE pool_id END,
        priority = CASE WHEN priority = $5 THEN $8 ELSE priority END,
        max_attempts = CASE WHEN max_attempts = $6 THEN $9 ELSE max_attempts END,
        version = CASE WHEN status = 'BACKLOG' THEN version + 1 ELSE version END, updated_at = clock_timestamp()
    FROM candidates AS f
    WHERE l.id = f.id
    RETURNING l.id
)
SELECT (SELECT count(*) FROM updated) AS updated, EXISTS (
    SELECT FROM leads
    WHERE campaign_id = $1 AND merchant_id = $2 AND status IN ('BACKLOG', 'PROCESSING')
      AND ((pool_id = $4 AND $4 <> $7) OR (priority = $5 AND $5 <> $8) OR (max_attempts = $6 AND $6 <> $9))
      AND id NOT IN (SELECT id FROM updated)) AS more

-- name: given
-- All leads have the edited fields.
UPDATE campaigns
SET given_pool_id = pool_id, given_priority = priority, given_max_attempts = max_attempts
WHERE id = $1

-- name: insert
-- A new campaign; no row if the merchant has sent this request_id before.
INSERT INTO campaigns (
    id, reseller_id, merchant_id, request_id, request_hash, name, pool_id, priority, max_attempts, given_pool_id,
    given_priority, given_max_attempts, starts_at, ends_at, reporting_webhook_url
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $7, $8, $9, $10, $11, $12)
ON CONFLICT (merchant_id, request_id) DO NOTHING
RETURNING *, pool_id AS pool, clock_timestamp() AS now

-- name: is_done
-- Whether a campaign had leads and none of them is left to call.
SELECT campaign_is_done($1, $2)

-- name: layers
-- Every layer of calling policy that applies to a campaign, from the platform's to its own, as documents.
SELECT ARRAY[(SELECT policy::text FROM policies WHERE scope = 'platform' AND subject = ''),
             (SELECT policy::text FROM policies WHERE scope = 'reseller' AND subject = $1),
             (SELECT policy::text FROM policies WHERE scope = 'merchant' AND subject = $2),
             (SELECT policy::text FROM policies WHERE scope = 'campaign' AND subject = $2 || '/' || $3::uuid)]

-- name: list
-- Campaigns of a tenant, newest first, with the number of their leads and of the finished ones, from the folded counts.
WITH page AS (
    SELECT *, pool_id AS pool, clock_timestamp() AS now FROM campaigns
    WHERE id < $3 AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)
      AND ($4::text IS NULL OR merchant_id = $4) AND ($5::text IS NULL OR status = $5)
    ORDER BY id DESC
    LIMIT $6
)
SELECT page.*, counted.leads, counted.finished
FROM page
CROSS JOIN LATERAL (
    SELECT coalesce(sum(c.leads), 0)::bigint AS leads,
           coalesce(sum(c.leads) FILTER (WHERE c.status = 'FINISHED'), 0)::bigint AS finished
    FROM campaign_counts AS c
    WHERE c.campaign_id = page.id AND c.merchant_id = page.merchant_id
) AS counted
ORDER BY page.id DESC

-- name: lock
-- A campaign that the tenant may change, locked until the transaction ends.
SELECT *, pool_id AS pool, clock_timestamp() AS now FROM campaigns
WHERE id = $3 AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)
FOR NO KEY UPDATE

-- name: move
-- A locked campaign's next status. The first start and the end are recorded.
UPDATE campaigns
SET status = $2, stop_reason = coalesce($3, stop_reason), stop_hangs_up = stop_hangs_up OR $4,
    started_at = CASE WHEN $2 = 'RUNNING' THEN coalesce(started_at, clock_timestamp()) ELSE started_at END,
    running_since = CASE WHEN $2 = 'RUNNING' THEN clock_timestamp() END,
    stopped_at = CASE WHEN $2 = 'STOPPED' THEN clock_timestamp() END,
    completed_at = CASE WHEN $2 = 'COMPLETED' THEN clock_timestamp() END, updated_at = clock_timestamp()
WHERE id = $1
RETURNING *, pool_id AS pool, clock_timestamp() AS now

-- name: progress
-- The progress of a campaign, from its folded counts: by status and outcome, with their attempts and those that ended within
-- the last ten minutes, or since it runs ($4; counts are folded by the minute). The next due time is read from the index of
-- each pool that its leads may wait in.
SELECT c.status, c.outcome, sum(c.leads)::bigint AS leads, sum(c.attempts)::bigint AS attempts,
       coalesce(sum(c.leads) FILTER (WHERE c.status = 'FINISHED' AND c.at > clock_timestamp() - interval '10 minutes'
                                         AND ($4::timestamptz IS NULL OR c.at >= date_trunc('minute', $4))),
                0)::bigint AS lately,
       sum(c.tried)::bigint AS tried, min(c.first_finished_at) AS first_finished_at, max(c.last_finished_at) AS last_finished_at,
       CASE WHEN c.status = 'BACKLOG' THEN (
           SELECT min(first.due_at)
           FROM pools AS p
           CROSS JOIN LATERAL (
               SELECT l.due_at FROM leads AS l
               WHERE l.status = 'BACKLOG' AND l.pool_id = p.id AND l.merchant_id = $2
                 AND coalesce(l.campaign_id, '00000000-0000-0000-0000-000000000000') = $1
               ORDER BY l.due_at LIMIT 1) AS first
           WHERE p.reseller_id IS NULL OR (p.reseller_id = $3 AND (p.merchant_id IS NULL OR p.merchant_id = $2))
       ) END AS next_due_at
FROM campaign_counts AS c
WHERE c.campaign_id = $1 AND c.merchant_id = $2
GROUP BY c.status, c.outcome
HAVING sum(c.leads) <> 0

-- name: sample
-- A lead that a campaign has yet to call, to compute when its windows are open. In the order of the whole key (see
-- `leads/list_by_merchant`): by the primary key, all finished leads would be read first.
SELECT phone, timezone FROM leads
WHERE campaign_id = ANY(ARRAY[$1::uuid]) AND merchant_id = $2 AND status = ANY(ARRAY['BACKLOG'])
ORDER BY campaign_id, status, id
LIMIT 1

-- name: unsettled
-- Campaigns with work for the keeper: their end has come, they are being stopped, an edit has not reached their leads, they
-- should have a stop and have none, none of their leads is left to call, or a lead came while they were being completed: an
-- upload may have been open that long.
SELECT c.id
FROM campaigns AS c
WHERE c.status NOT IN ('STOPPED', 'COMPLETED')
  AND (c.status = 'STOPPING' OR c.ends_at <= clock_timestamp()
       OR (c.pool_id, c.priority, c.max_attempts) IS DISTINCT FROM
          (c.given_pool_id, c.given_priority, c.given_max_attempts)
       OR (c.status IN ('DRAFT', 'PAUSED') AND NOT EXISTS (
              SELECT FROM controls AS k
              WHERE k.scope = 'campaign' AND k.subject = c.merchant_id || '/' || c.id AND k.set_by = 'merchant'
                AND (k.ends_at IS NULL OR k.ends_at > clock_timestamp())))
       OR (c.status = 'RUNNING' AND campaign_is_done(c.id, c.merchant_id)))
UNION ALL
SELECT c.id
FROM campaigns AS c
WHERE c.status = 'COMPLETED' AND c.completed_at > clock_timestamp() - interval '1 hour'
  AND NOT campaign_is_done(c.id, c.merchant_id)
ORDER BY id
LIMIT $1

-- name: waiting
-- Some leads of a campaign that have neither ended nor been cancelled, in the order in which leads are locked. Each part in
-- the order of the whole key (see `leads/list_by_merchant`): by the primary key, all finished leads would be read first.
SELECT id FROM (
    (SELECT id FROM leads
     WHERE campaign_id = ANY(ARRAY[$1::uuid]) AND merchant_id = $2 AND status = ANY(ARRAY['BACKLOG'])
     ORDER BY campaign_id, status, id LIMIT $3)
    UNION ALL
    (SELECT id FROM leads
     WHERE campaign_id = ANY(ARRAY[$1::uuid]) AND merchant_id = $2 AND status = ANY(ARRAY['PROCESSING'])
       AND cancel_requested_at IS NULL
     ORDER BY campaign_id, status, id LIMIT $3)
) AS unended
ORDER BY id
LIMIT $3
