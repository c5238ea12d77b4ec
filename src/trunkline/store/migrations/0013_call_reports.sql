-- What agents report of their calls: once per call, also after its end. The call's fold joins it with what the carrier
-- tells, whichever comes first.
CREATE TABLE call_reports (
    attempt_id      uuid PRIMARY KEY REFERENCES attempts (id) ON DELETE CASCADE,
    disposition     text CHECK (length(disposition) BETWEEN 1 AND 100),
    opt_out         boolean NOT NULL DEFAULT false,
    callback_at     timestamptz,
    transcript_ref  text CHECK (length(transcript_ref) BETWEEN 1 AND 2000),
    recording_ref   text CHECK (length(recording_ref) BETWEEN 1 AND 2000),
    data            jsonb NOT NULL DEFAULT '{}',
    reported_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);
