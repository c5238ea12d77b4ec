-- Mailboxes: an entity with pending events, processed by one worker at a time, all events at once.

-- A fence is never used twice, also not by a mailbox that was removed and came back.
CREATE SEQUENCE mailbox_fences;

CREATE TABLE mailboxes (
    kind                   text NOT NULL CHECK (octet_length(kind) BETWEEN 1 AND 63),
    key                    text NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 500),
    processing_status      text NOT NULL DEFAULT 'idle'
        CONSTRAINT chk_mailboxes_processing_status
        CHECK (processing_status IN ('idle', 'queued', 'processing', 'dead')),
    -- `appended` numbers the events. Completion compares it with the value that was claimed: looking again for
    -- events instead (EXISTS) strands one that commits in between.
    appended               bigint NOT NULL DEFAULT 0,
    -- Every event up to this number has been processed or parked.
    processed              bigint NOT NULL DEFAULT 0,
    fence                  bigint NOT NULL DEFAULT 0,
    locked_by              text,
    -- When it may be claimed: while `queued` its turn after a backoff, while `processing` the end of its lease.
    claimable_at           timestamptz,
    failures               int NOT NULL DEFAULT 0,
    last_error             text,
    processing_started_at  timestamptz,
    last_processed_at      timestamptz,
    created_at             timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (kind, key),
    CHECK ((claimable_at IS NOT NULL) = (processing_status IN ('queued', 'processing'))),
    CHECK (processed <= appended)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500,
        autovacuum_analyze_scale_factor = 0.05);
-- Both a turn that has come and a lease that ran out are found here, in one range, oldest first.
CREATE INDEX mailboxes_claimable ON mailboxes (kind, claimable_at) WHERE claimable_at IS NOT NULL;
-- What people look for beside the backlog and the stuck, which the index above finds too.
CREATE INDEX mailboxes_dead ON mailboxes (kind, key) WHERE processing_status = 'dead';

CREATE TABLE mailbox_events (
    kind          text NOT NULL,
    key           text NOT NULL,
    seq           bigint NOT NULL,
    dedupe_key    text NOT NULL CHECK (octet_length(dedupe_key) BETWEEN 1 AND 500),
    type          text NOT NULL,
    payload       jsonb NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    processed_at  timestamptz,
    -- Why it was parked: it is processed in the sense that no handler gets it again, unless it is replayed.
    error         text,
    PRIMARY KEY (kind, key, seq),
    -- Unique per mailbox and under its lock. Unique across mailboxes, two appends could wait for each other.
    CONSTRAINT mailbox_events_once UNIQUE (kind, key, dedupe_key)
-- Half of a page stays free for the second version of its rows: no index names `processed_at`, so marking an event
-- touches no index (measured: four times as fast, and the table is no larger).
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05);
CREATE INDEX mailbox_events_by_age ON mailbox_events (created_at);
CREATE INDEX mailbox_events_parked ON mailbox_events (kind, key, seq) WHERE error IS NOT NULL;
