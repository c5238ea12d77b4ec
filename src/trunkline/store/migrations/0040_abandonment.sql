-- Overdialling: how many calls are answered, how many of those who answered found no agent, and who they were.

-- What ended, one row for each merchant and campaign of a settlement, in its transaction: nobody waits for a counter that
-- another holds. A loop folds these rows, so that reading them stays cheap.
CREATE TABLE call_counts (
    reseller_id  text NOT NULL,
    -- Empty: all merchants of the reseller together. Whoever folds writes these, so that an overview reads few rows.
    merchant_id  text NOT NULL,
    -- The zero id: leads without a campaign.
    campaign_id  uuid NOT NULL,
    -- When, or the minute, hour or day (UTC) of it.
    at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    grain        text NOT NULL DEFAULT 'call' CHECK (grain IN ('call', 'minute', 'hour', 'day')),
    -- Calls that a carrier took and that are over; those that somebody or something answered; those that a person answered;
    -- and those of them that found no agent in time. A correction is negative.
    ended        bigint NOT NULL,
    answered     bigint NOT NULL,
    by_person    bigint NOT NULL,
    abandoned    bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);
CREATE INDEX call_counts_by_campaign ON call_counts (merchant_id, campaign_id, at);
CREATE INDEX call_counts_to_fold ON call_counts (at) WHERE grain <> 'day';
CREATE INDEX call_counts_fresh ON call_counts (at) WHERE grain = 'call';

-- Who answered and found no agent. Regulators ask for such records, and whoever is in here is rung again only with an agent
-- reserved.
CREATE TABLE abandoned_calls (
    attempt_id   uuid PRIMARY KEY,
    lead_id      uuid NOT NULL,
    reseller_id  text NOT NULL,
    merchant_id  text NOT NULL,
    campaign_id  uuid,
    phone        text NOT NULL,
    at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- No agent was reserved for the call, by choice.
    overdialled  boolean NOT NULL
);
CREATE INDEX abandoned_calls_by_person ON abandoned_calls (merchant_id, phone, at);

-- Of an attempt without an agent reserved for it, by choice: the agents it counts on, how probably it is answered, and the
-- share of abandoned calls that it was admitted under.
ALTER TABLE attempts
    ADD COLUMN overdial_group text,
    ADD COLUMN answer_rate real,
    ADD COLUMN abandon_max real;
CREATE INDEX attempts_overdialled ON attempts (overdial_group)
    WHERE overdial_group IS NOT NULL AND state IN ('dialing', 'in_doubt', 'accepted', 'ringing');
