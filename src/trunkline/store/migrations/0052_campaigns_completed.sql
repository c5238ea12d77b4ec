-- A campaign whose leads have all finished is COMPLETED, and runs again when one waits again.

ALTER TABLE campaigns
    ADD COLUMN completed_at timestamptz,
    -- Since when it runs without a break: its pace is that of this time, and of no time in which it did not run.
    ADD COLUMN running_since timestamptz;
UPDATE campaigns SET running_since = started_at WHERE status = 'RUNNING';
ALTER TABLE campaigns DROP CONSTRAINT campaigns_status_check;
ALTER TABLE campaigns ADD CONSTRAINT campaigns_status_check
    CHECK (status IN ('DRAFT', 'RUNNING', 'PAUSED', 'COMPLETED', 'STOPPING', 'STOPPED'));
ALTER TABLE campaigns ADD CONSTRAINT campaigns_completed_at CHECK ((status = 'COMPLETED') = (completed_at IS NOT NULL));

-- The campaigns that somebody has to look at do not grow with those that are over.
DROP INDEX campaigns_unsettled;
CREATE INDEX campaigns_unsettled ON campaigns (id) WHERE status NOT IN ('STOPPED', 'COMPLETED');
CREATE INDEX campaigns_completed ON campaigns (completed_at) WHERE status = 'COMPLETED';

-- Whether a campaign had leads and none of them is left to call. Three looks into an index, however many leads it has.
CREATE FUNCTION campaign_is_done(in_campaign uuid, in_merchant text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT NOT EXISTS (SELECT FROM leads WHERE campaign_id = in_campaign AND status = 'BACKLOG' AND merchant_id = in_merchant)
       AND NOT EXISTS (SELECT FROM leads WHERE campaign_id = in_campaign AND status = 'PROCESSING' AND merchant_id = in_merchant)
       AND EXISTS (SELECT FROM leads WHERE campaign_id = in_campaign AND status = 'FINISHED' AND merchant_id = in_merchant)
$$;

-- Whoever adds a lead to a completed campaign, or calls one of it again, need not know that it was completed. A campaign that
-- is being completed at that very moment is put right by the keeper.
CREATE FUNCTION campaigns_run_again(in_ids uuid[]) RETURNS void LANGUAGE sql AS $$
    UPDATE campaigns
    SET status = 'RUNNING', completed_at = NULL, running_since = clock_timestamp(), updated_at = clock_timestamp()
    WHERE id = ANY(in_ids) AND status = 'COMPLETED'
$$;
CREATE FUNCTION leads_came_to_campaigns() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    found uuid[] := ARRAY(SELECT DISTINCT campaign_id FROM now_there WHERE campaign_id IS NOT NULL);
BEGIN
    IF cardinality(found) > 0 THEN PERFORM campaigns_run_again(found); END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER leads_came_to_campaigns AFTER INSERT ON leads REFERENCING NEW TABLE AS now_there
FOR EACH STATEMENT EXECUTE FUNCTION leads_came_to_campaigns();

CREATE FUNCTION lead_waits_again() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM campaigns_run_again(ARRAY[NEW.campaign_id]);
    RETURN NULL;
END $$;
CREATE TRIGGER lead_waits_again AFTER UPDATE OF status ON leads FOR EACH ROW
WHEN (OLD.status = 'FINISHED' AND NEW.status <> 'FINISHED' AND NEW.campaign_id IS NOT NULL)
EXECUTE FUNCTION lead_waits_again();
