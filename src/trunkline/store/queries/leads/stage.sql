-- A place for the rows of an upload, gone with its transaction. The payload is text here: binary COPY takes it as it is.
CREATE TEMPORARY TABLE staged_leads (
    row_no                 int NOT NULL,
    id                     uuid NOT NULL,
    reseller_id            text NOT NULL,
    merchant_id            text NOT NULL,
    request_id             text NOT NULL,
    request_hash           bytea NOT NULL,
    phone                  text NOT NULL,
    timezone               text,
    payload                text NOT NULL,
    campaign_id            uuid,
    pool_id                text NOT NULL,
    priority               smallint NOT NULL,
    max_attempts           smallint NOT NULL,
    reporting_webhook_url  text,
    scheduled_at           timestamptz,
    due_at                 timestamptz,
    closes_at              timestamptz,
    is_deferred            boolean NOT NULL
) ON COMMIT DROP
