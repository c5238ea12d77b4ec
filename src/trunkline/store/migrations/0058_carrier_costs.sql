-- What calls cost by the carriers' own figures, beside ours (`cost_micros`), which go by the price in a policy.

ALTER TABLE attempts
    -- In millionths of the carrier's currency. NULL: it has told none.
    ADD COLUMN carrier_cost_micros    bigint,
    ADD COLUMN carrier_cost_currency  text;

-- Carriers whose webhooks tell no price are asked for it later, by pages of the calls that have ended. A price may take a while to
-- be there, so each stretch of time is read twice: after each of the lags.
CREATE TABLE cost_readings (
    carrier       text NOT NULL,
    account       text NOT NULL,
    lag_s         int NOT NULL,
    -- Calls that ended before this have been read.
    read_to       timestamptz NOT NULL,
    leased_until  timestamptz,
    PRIMARY KEY (carrier, account, lag_s)
) WITH (fillfactor = 50);
