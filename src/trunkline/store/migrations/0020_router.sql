-- What the router must not forget when Valkey does: the tier of each pod, which call has which pod, merchants' tiers.
CREATE TABLE router_pods (
    name        text PRIMARY KEY,
    tier        text NOT NULL,
    changed_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- One row per allocation. It is written after the answer, by whoever gave or ended it, in any order: an end wins.
CREATE TABLE router_allocations (
    allocation_id  text PRIMARY KEY,
    call_sid       text NOT NULL,
    pod            text NOT NULL,
    source_pool    text NOT NULL DEFAULT '',
    merchant_id    text NOT NULL DEFAULT '',
    allocated_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at       timestamptz
) WITH (fillfactor = 70);
CREATE INDEX router_allocations_open ON router_allocations (pod) WHERE ended_at IS NULL;
CREATE INDEX router_allocations_open_calls ON router_allocations (call_sid) WHERE ended_at IS NULL;
CREATE INDEX router_allocations_ended ON router_allocations (ended_at) WHERE ended_at IS NOT NULL;

-- As it stands in `voice:merchant:config`: text, since what an operator wrote by hand is kept as it was written.
CREATE TABLE router_merchants (
    merchant_id  text PRIMARY KEY CHECK (length(merchant_id) BETWEEN 1 AND 256),
    config       text NOT NULL CHECK (length(config) BETWEEN 1 AND 4096),
    changed_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);
