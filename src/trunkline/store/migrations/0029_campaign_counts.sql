-- How many leads of a campaign are where: kept, because a page that counted a million of them would take a second. Whoever
-- moves leads writes what changed, one row for each status and outcome of a statement, in the same transaction; nobody
-- waits for a counter that another holds. A loop folds these rows, so that reading them stays cheap.
CREATE TABLE campaign_counts (
    -- As leads name them. A campaign's id is the caller's own, so that it means something only beside its merchant.
    campaign_id        uuid NOT NULL,
    merchant_id        text NOT NULL,
    -- When it changed, or the minute of it; '-infinity' when nobody asks about that minute any more.
    at                 timestamptz NOT NULL DEFAULT clock_timestamp(),
    status             text NOT NULL,
    outcome            text,
    -- More, or fewer.
    leads              bigint NOT NULL,
    attempts           bigint NOT NULL,
    tried              bigint NOT NULL,
    first_finished_at  timestamptz,
    last_finished_at   timestamptz,
    is_folded          boolean NOT NULL DEFAULT false
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);
CREATE INDEX campaign_counts_by_campaign ON campaign_counts (campaign_id, merchant_id);
CREATE INDEX campaign_counts_to_fold ON campaign_counts (at) WHERE NOT is_folded;

INSERT INTO campaign_counts
SELECT campaign_id, merchant_id, '-infinity', status, outcome, count(*), sum(attempt_count),
       count(*) FILTER (WHERE attempt_count > 0), min(finished_at), max(finished_at), true
FROM leads
WHERE campaign_id IS NOT NULL
GROUP BY campaign_id, merchant_id, status, outcome;

CREATE FUNCTION leads_came() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO campaign_counts (campaign_id, merchant_id, status, outcome, leads, attempts, tried, first_finished_at,
                                 last_finished_at)
    SELECT campaign_id, merchant_id, status, outcome, count(*), sum(attempt_count),
           count(*) FILTER (WHERE attempt_count > 0), min(finished_at), max(finished_at)
    FROM now_there
    WHERE campaign_id IS NOT NULL
    GROUP BY campaign_id, merchant_id, status, outcome;
    RETURN NULL;
END $$;

CREATE FUNCTION leads_went() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO campaign_counts (campaign_id, merchant_id, status, outcome, leads, attempts, tried)
    SELECT campaign_id, merchant_id, status, outcome, -count(*), -sum(attempt_count),
           -count(*) FILTER (WHERE attempt_count > 0)
    FROM no_more
    WHERE campaign_id IS NOT NULL
    GROUP BY campaign_id, merchant_id, status, outcome;
    RETURN NULL;
END $$;

-- Most updates of a lead move nothing that is counted: they write no row.
CREATE FUNCTION leads_moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO campaign_counts (campaign_id, merchant_id, status, outcome, leads, attempts, tried, first_finished_at,
                                 last_finished_at)
    SELECT campaign_id, merchant_id, status, outcome, sum(leads), sum(leads * attempt_count),
           coalesce(sum(leads) FILTER (WHERE attempt_count > 0), 0), min(finished_at), max(finished_at)
    FROM (
        SELECT campaign_id, merchant_id, status, outcome, 1 AS leads, attempt_count, finished_at FROM now_there
        UNION ALL
        SELECT campaign_id, merchant_id, status, outcome, -1, attempt_count, NULL FROM no_more
    ) AS change
    WHERE campaign_id IS NOT NULL
    GROUP BY campaign_id, merchant_id, status, outcome
    HAVING sum(leads) <> 0 OR sum(leads * attempt_count) <> 0;
    RETURN NULL;
END $$;

CREATE TRIGGER leads_came AFTER INSERT ON leads REFERENCING NEW TABLE AS now_there
FOR EACH STATEMENT EXECUTE FUNCTION leads_came();
CREATE TRIGGER leads_went AFTER DELETE ON leads REFERENCING OLD TABLE AS no_more
FOR EACH STATEMENT EXECUTE FUNCTION leads_went();
CREATE TRIGGER leads_moved AFTER UPDATE ON leads REFERENCING OLD TABLE AS no_more NEW TABLE AS now_there
FOR EACH STATEMENT EXECUTE FUNCTION leads_moved();
