-- Whoever ends a lead (the fold of a call, a gate, an abort, ten failed intents) need not know who wants to hear of it:
-- the job that tells them is enqueued with the end itself, in the same transaction. Where nobody wants to, nothing is.
CREATE FUNCTION lead_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.reporting_webhook_url IS NOT NULL OR EXISTS (
        SELECT FROM webhook_endpoints AS e
        WHERE e.reseller_id = NEW.reseller_id AND (e.merchant_id IS NULL OR e.merchant_id = NEW.merchant_id)
          AND e.status = 'active' AND e.event_types && '{*,lead.finished}')
    THEN
        INSERT INTO job_outbox (id, job_type, run_at, created_at, max_attempts, reseller_id, merchant_id, payload)
        VALUES (job_id(), 'report_lead', clock_timestamp(), clock_timestamp(), 10, NEW.reseller_id, NEW.merchant_id,
                json_build_object('lead_id', NEW.id)::text);
    END IF;
    RETURN NULL;
END
$$;

-- A UUIDv7, as ids of jobs are everywhere: retention and lists go by its time.
CREATE FUNCTION job_id() RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT encode(set_bit(set_bit(
        overlay(uuid_send(gen_random_uuid())
                PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6),
        52, 1), 53, 1), 'hex')::uuid
$$;

CREATE TRIGGER leads_ended AFTER UPDATE OF status ON leads FOR EACH ROW
WHEN (NEW.status = 'FINISHED' AND OLD.status <> 'FINISHED') EXECUTE FUNCTION lead_ended();
