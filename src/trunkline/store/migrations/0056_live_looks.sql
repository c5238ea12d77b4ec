-- When the carriers were last asked about calls that go on. Webhooks get lost: in an outage of ours, on the way, at the
-- carrier. A call whose end nobody told keeps its channel until somebody asks.

ALTER TABLE attempts
    -- When its carrier was last asked about it. NULL: not yet.
    ADD COLUMN looked_at timestamptz;

-- One row per account that has had calls.
CREATE TABLE account_looks (
    carrier       text NOT NULL,
    account       text NOT NULL,
    -- When its calls are compared with the carrier's list next. Whoever sees that webhooks were lost brings it forward.
    next_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Somebody is at it. If that process dies, another begins then.
    leased_until  timestamptz,
    looked_at     timestamptz,
    PRIMARY KEY (carrier, account)
) WITH (fillfactor = 50);

-- When a process that takes webhooks last reached Postgres. After a gap nobody knows what was told meanwhile. One row.
CREATE TABLE webhook_hearing (
    is_only  boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    ran_at   timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);
INSERT INTO webhook_hearing DEFAULT VALUES;
