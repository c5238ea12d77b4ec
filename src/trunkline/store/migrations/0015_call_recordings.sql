-- Where carriers keep the recordings of calls: told once in a webhook, and kept for longer than its event.
CREATE TABLE call_recordings (
    attempt_id  uuid NOT NULL REFERENCES attempts (id) ON DELETE CASCADE,
    ref         text NOT NULL CHECK (length(ref) BETWEEN 1 AND 2000),
    kept_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (attempt_id, ref)
);
