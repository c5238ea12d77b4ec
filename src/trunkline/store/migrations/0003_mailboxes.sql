-- Mailboxes: an entity with pending events, processed by one worker at a time, all events at once.

CREATE TABLE mailboxes (
    kind                   text NOT NULL,
    key                    text NOT NULL,
    status                 text NOT NULL DEFAULT 'idle' CHECK (status IN ('idle', 'queued', 'processing', 'dead')),
    -- `appended` numbers the events. Completion compares it with the value that was claimed: looking again for
    -- events instead (EXISTS) strands one that commits in between.
    appended               bigint NOT NULL DEFAULT 0,
    processed              bigint NOT NULL DEFAULT 0,
    fence                  bigint NOT NULL DEFAULT 0,
    locked_by              text,
    lease_expires_at       timestamptz,
    next_at                timestamptz NOT NULL DEFAULT now(),
    failures               int NOT NULL DEFAULT 0,
    last_error             text,
    processing_started_at  timestamptz,
    last_processed_at      timestamptz,
    created_at             timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (kind, key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);
CREATE INDEX mailboxes_queued ON mailboxes (kind, next_at) WHERE status = 'queued';
CREATE INDEX mailboxes_leased ON mailboxes (kind, lease_expires_at) WHERE status = 'processing';

CREATE TABLE mailbox_events (
    kind          text NOT NULL,
    key           text NOT NULL,
    seq           bigint NOT NULL,
    dedupe_key    text NOT NULL,
    type          text NOT NULL,
    payload       jsonb NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    processed_at  timestamptz,
    error         text,
    PRIMARY KEY (kind, key, seq),
    CONSTRAINT mailbox_events_once UNIQUE (kind, key, dedupe_key)
);
CREATE INDEX mailbox_events_unprocessed ON mailbox_events (kind, key, seq) WHERE processed_at IS NULL;
CREATE INDEX mailbox_events_for_retention ON mailbox_events (processed_at) WHERE processed_at IS NOT NULL;
