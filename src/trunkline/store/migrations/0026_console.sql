-- What the console must not take twice: links that were used, and sessions that were signed out, until they would have
-- ended anyway. Whoever is not here was never spent.
CREATE TABLE console_spent (
    id     uuid PRIMARY KEY,
    until  timestamptz NOT NULL
);
CREATE INDEX console_spent_by_end ON console_spent (until);

-- What follows a lead is found from the lead: the jobs of its end carry its id in their unique keys.
CREATE OR REPLACE FUNCTION lead_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.reporting_webhook_url IS NOT NULL OR EXISTS (
        SELECT FROM webhook_endpoints AS e
        WHERE e.reseller_id = NEW.reseller_id AND (e.merchant_id IS NULL OR e.merchant_id = NEW.merchant_id)
          AND e.status = 'active' AND e.event_types && '{*,lead.finished}')
    THEN
        INSERT INTO job_outbox (id, job_type, run_at, created_at, max_attempts, unique_key, reseller_id, merchant_id, payload)
        VALUES (job_id(), 'report_lead', clock_timestamp(), clock_timestamp(), 10, NEW.id::text, NEW.reseller_id,
                NEW.merchant_id, json_build_object('lead_id', NEW.id)::text)
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END
$$;
CREATE INDEX job_history_by_key ON job_history (unique_key) WHERE unique_key IS NOT NULL;
CREATE INDEX job_dead_by_key ON job_dead (unique_key) WHERE unique_key IS NOT NULL;
