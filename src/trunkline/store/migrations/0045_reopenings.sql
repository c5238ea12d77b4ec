-- Finished leads that a person has called again. Orders are numbered: what an earlier one left behind (attempts, ends,
-- messages to webhooks) never takes the place of what came after it.

ALTER TABLE leads ADD COLUMN reopen_count smallint NOT NULL DEFAULT 0;

CREATE TABLE lead_reopenings (
    lead_id         uuid NOT NULL REFERENCES leads (id) ON DELETE CASCADE,
    no              smallint NOT NULL CHECK (no >= 1),
    -- The caller's own id of the order. Sent again, it reopens nothing: the lead may have finished again by then.
    request_id      text NOT NULL CHECK (length(request_id) BETWEEN 1 AND 200),
    reason          text NOT NULL,
    actor           text NOT NULL,
    at              timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- How the lead had ended.
    outcome         text NOT NULL,
    outcome_reason  text,
    finished_at     timestamptz NOT NULL,
    PRIMARY KEY (lead_id, no),
    CONSTRAINT lead_reopenings_once UNIQUE (lead_id, request_id)
);

-- Leads of a merchant that ended in one way since a moment, to be called again.
CREATE INDEX leads_ended_by_merchant ON leads (merchant_id, outcome, finished_at, id) WHERE status = 'FINISHED';

-- The end of each order is reported by a job of its own: the key of the first one stays as it was.
CREATE OR REPLACE FUNCTION lead_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.reporting_webhook_url IS NOT NULL OR EXISTS (
        SELECT FROM webhook_endpoints AS e
        WHERE e.reseller_id = NEW.reseller_id AND (e.merchant_id IS NULL OR e.merchant_id = NEW.merchant_id)
          AND e.status = 'active' AND e.event_types && '{*,lead.finished}')
    THEN
        INSERT INTO job_outbox (id, job_type, run_at, created_at, max_attempts, unique_key, reseller_id, merchant_id, payload)
        VALUES (job_id(), 'report_lead', clock_timestamp(), clock_timestamp(), 10,
                NEW.id || CASE WHEN NEW.reopen_count > 0 THEN '/' || NEW.reopen_count ELSE '' END,
                NEW.reseller_id, NEW.merchant_id,
                json_build_object('lead_id', NEW.id, 'reopen_no', NEW.reopen_count)::text)
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION lead_reopened() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.reporting_webhook_url IS NOT NULL OR EXISTS (
        SELECT FROM webhook_endpoints AS e
        WHERE e.reseller_id = NEW.reseller_id AND (e.merchant_id IS NULL OR e.merchant_id = NEW.merchant_id)
          AND e.status = 'active' AND e.event_types && '{*,lead.reopened}')
    THEN
        INSERT INTO job_outbox (id, job_type, run_at, created_at, max_attempts, unique_key, reseller_id, merchant_id, payload)
        VALUES (job_id(), 'report_lead', clock_timestamp(), clock_timestamp(), 10,
                NEW.id || '/' || NEW.reopen_count || '/reopened', NEW.reseller_id, NEW.merchant_id,
                json_build_object('lead_id', NEW.id, 'reopen_no', NEW.reopen_count, 'is_reopened', true)::text)
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER leads_reopened AFTER UPDATE OF status ON leads FOR EACH ROW
WHEN (OLD.status = 'FINISHED' AND NEW.reopen_count > OLD.reopen_count) EXECUTE FUNCTION lead_reopened();

-- Of the leads that wait, those of an earlier order were tried, whatever the new one has not counted yet.
CREATE OR REPLACE FUNCTION leads_came() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO campaign_counts (campaign_id, merchant_id, status, outcome, leads, attempts, tried, first_finished_at,
                                 last_finished_at)
    SELECT campaign_id, merchant_id, status, outcome, count(*), sum(attempt_count),
           count(*) FILTER (WHERE attempt_count + no_agent_count + reopen_count > 0), min(finished_at), max(finished_at)
    FROM now_there
    WHERE campaign_id IS NOT NULL
    GROUP BY campaign_id, merchant_id, status, outcome;
    RETURN NULL;
END $$;
CREATE OR REPLACE FUNCTION leads_went() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO campaign_counts (campaign_id, merchant_id, status, outcome, leads, attempts, tried)
    SELECT campaign_id, merchant_id, status, outcome, -count(*), -sum(attempt_count),
           -count(*) FILTER (WHERE attempt_count + no_agent_count + reopen_count > 0)
    FROM no_more
    WHERE campaign_id IS NOT NULL
    GROUP BY campaign_id, merchant_id, status, outcome;
    RETURN NULL;
END $$;
CREATE OR REPLACE FUNCTION leads_moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO campaign_counts (campaign_id, merchant_id, status, outcome, leads, attempts, tried, first_finished_at,
                                 last_finished_at)
    SELECT campaign_id, merchant_id, status, outcome, sum(leads), sum(leads * attempt_count),
           coalesce(sum(leads) FILTER (WHERE was_tried), 0), min(finished_at), max(finished_at)
    FROM (
        SELECT campaign_id, merchant_id, status, outcome, 1 AS leads, attempt_count,
               attempt_count + no_agent_count + reopen_count > 0 AS was_tried, finished_at
        FROM now_there
        UNION ALL
        SELECT campaign_id, merchant_id, status, outcome, -1, attempt_count,
               attempt_count + no_agent_count + reopen_count > 0, NULL
        FROM no_more
    ) AS change
    WHERE campaign_id IS NOT NULL
    GROUP BY campaign_id, merchant_id, status, outcome
    HAVING sum(leads) <> 0 OR sum(leads * attempt_count) <> 0;
    RETURN NULL;
END $$;
