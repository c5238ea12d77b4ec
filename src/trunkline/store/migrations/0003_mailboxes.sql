-- Mailboxes: an entity with pending events, processed by one worker at a time, all events at once.

CREATE TABLE mailboxes (
    kind                   text NOT NULL CHECK (octet_length(kind) BETWEEN 1 AND 63),
    key                    text NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 500),
    -- What its events name it by: short, and never given to another mailbox.
    id                     bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    processing_status      text NOT NULL DEFAULT 'idle'
        CONSTRAINT chk_mailboxes_processing_status
        CHECK (processing_status IN ('idle', 'queued', 'processing', 'dead')),
    -- `appended` numbers the events. Completion compares it with the value that was claimed: looking again for
    -- events instead (EXISTS) strands one that commits in between.
    appended               bigint NOT NULL DEFAULT 0,
    -- Every event up to this number has been processed or parked.
    processed              bigint NOT NULL DEFAULT 0,
    -- Of its last claim. Drawn by lot, because a claim does not wait for the disk: a server that goes down forgets what
    -- it had not written, and would give numbers of a sequence out a second time, to a worker beside the first.
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
    mailbox_id    bigint NOT NULL,
    seq           bigint NOT NULL,
    dedupe_key    text NOT NULL CHECK (octet_length(dedupe_key) BETWEEN 1 AND 500),
    type          text NOT NULL,
    payload       jsonb NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    processed_at  timestamptz,
    -- Why it was parked: it is processed in the sense that no handler gets it again, unless it is replayed.
    error         text,
    PRIMARY KEY (mailbox_id, seq),
    -- Unique per mailbox and under its lock. Unique across mailboxes, two appends could wait for each other.
    CONSTRAINT mailbox_events_once UNIQUE (mailbox_id, dedupe_key)
-- Half of a page stays free for the second version of its rows: no index names `processed_at`, so marking an event
-- touches no index (measured: four times as fast, and the table is no larger).
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05);
-- For retention. Rows lie in the order of their arrival, more or less, and this costs an append next to nothing.
CREATE INDEX mailbox_events_by_age ON mailbox_events USING brin (created_at) WITH (autosummarize = on);
CREATE INDEX mailbox_events_parked ON mailbox_events (mailbox_id, seq) WHERE error IS NOT NULL;

-- The ways in and out are functions, each one statement that commits itself. A process that is stopped in the middle of
-- one holds no lock, and five round trips are one. Each statement in them has a snapshot of its own.
-- `enable_seqscan`: while the tables are young the planner takes them for small, and would read all of them.

-- Lock mailboxes, sorted, and make those that are missing; returns them as they are under the lock, in the order in
-- which they were named. Nobody waits for longer than `patience_ms`: one mailbox that somebody holds must not hold up
-- the others.
CREATE FUNCTION mailbox_lock(
    in_kinds text[], in_keys text[], patience_ms int, OUT ids bigint[], OUT counts bigint[], OUT statuses text[]
) LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    PERFORM set_config('lock_timeout', patience_ms::text, true);
    LOOP
        INSERT INTO mailboxes (kind, key)
        SELECT wanted.kind, wanted.key FROM unnest(in_kinds, in_keys) AS wanted (kind, key)
        WHERE NOT EXISTS (SELECT FROM mailboxes AS m WHERE m.kind = wanted.kind AND m.key = wanted.key)
        ORDER BY wanted.kind, wanted.key
        ON CONFLICT DO NOTHING;

        -- A row that was waited for is returned as it was committed, not as this statement's snapshot has it.
        WITH locked AS (
            SELECT wanted.place, m.id, m.appended, m.processing_status
            FROM unnest(in_kinds, in_keys) WITH ORDINALITY AS wanted (kind, key, place)
            JOIN mailboxes AS m ON m.kind = wanted.kind AND m.key = wanted.key
            ORDER BY m.kind, m.key
            FOR NO KEY UPDATE OF m
        )
        SELECT array_agg(l.id ORDER BY l.place), array_agg(l.appended ORDER BY l.place),
               array_agg(l.processing_status ORDER BY l.place)
        INTO ids, counts, statuses
        FROM locked AS l;
        -- Retention may have removed one between the two statements.
        EXIT WHEN cardinality(ids) = cardinality(in_keys);
    END LOOP;
END $$;

-- Append events that are new to their mailbox and add what went in to its counter, under the mailbox's lock. A doubled
-- event has its dedupe key already and raises nothing. `idle` becomes `queued`; `processing` stays, because completion
-- compares the counter; `dead` stays, and the caller alarms. `in_boxes` says which of the mailboxes an event is for, and
-- `in_amounts` how many are for each. Look-ups by place instead of joins: a join of two sets that the planner takes for
-- small would be a nested loop over both.
-- The answer has a row for each mailbox, with its counter and status before: its new events are numbered from there, in
-- their order. And it has a row for each event that was there already: its place among those sent, and its number.
CREATE FUNCTION mailbox_append(
    in_kinds text[], in_keys text[], in_amounts int[],
    in_boxes int[], in_dedupe_keys text[], in_types text[], in_payloads jsonb[], patience_ms int
) RETURNS TABLE (in_box int, number bigint, status_before text, known_at int)
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    amounts int[] := in_amounts;
    ids bigint[];
    counts bigint[];
    statuses text[];
    known_places int[];
    known_boxes int[];
    known_seqs bigint[];
    known_box int;
BEGIN
    SELECT l.ids, l.counts, l.statuses INTO ids, counts, statuses
    FROM mailbox_lock(in_kinds, in_keys, patience_ms) AS l;

    SELECT array_agg(e.place::int), array_agg(e.box), array_agg(known.seq)
    INTO known_places, known_boxes, known_seqs
    FROM unnest(in_boxes, in_dedupe_keys) WITH ORDINALITY AS e (box, dedupe_key, place)
    JOIN mailbox_events AS known ON known.mailbox_id = ids[e.box] AND known.dedupe_key = e.dedupe_key;
    FOREACH known_box IN ARRAY COALESCE(known_boxes, '{}') LOOP
        amounts[known_box] := amounts[known_box] - 1;
    END LOOP;

    INSERT INTO mailbox_events (mailbox_id, seq, dedupe_key, type, payload)
    SELECT ids[e.box], counts[e.box] + row_number() OVER (PARTITION BY e.box ORDER BY e.place),
           e.dedupe_key, e.type, e.payload
    FROM unnest(in_boxes, in_dedupe_keys, in_types, in_payloads)
         WITH ORDINALITY AS e (box, dedupe_key, type, payload, place)
    WHERE known_places IS NULL OR e.place <> ALL (known_places);

    UPDATE mailboxes AS m
    SET appended = m.appended + added.amount,
        processing_status = CASE WHEN m.processing_status = 'idle' THEN 'queued' ELSE m.processing_status END,
        claimable_at = CASE WHEN m.processing_status = 'idle' THEN clock_timestamp() ELSE m.claimable_at END
    FROM unnest(in_kinds, in_keys, amounts) AS added (kind, key, amount)
    WHERE m.kind = added.kind AND m.key = added.key AND added.amount > 0;

    RETURN QUERY
    SELECT box, counts[box], statuses[box], NULL::int FROM generate_series(1, cardinality(ids)) AS box
    UNION ALL
    SELECT known.box, known.seq, NULL, known.place
    FROM unnest(known_boxes, known_seqs, known_places) AS known (box, seq, place);
END $$;

-- Claim mailboxes that have work, `queued` whose turn has come or `processing` under a lease that ran out, and read their
-- pending events in order, at most `in_events_max` of each. With keys given only those: they were nudged. Without, this
-- is the sweep, and the scan at start. A lost lease counts as a failure: what kills its worker must end as dead too.
-- The events are read by a later statement: one that committed while the first waited for a lock is counted there, and
-- its snapshot would not show it. Nobody waits for the disk (measured: 0.5 ms instead of 4): a claim that goes down with
-- the server was never made, and its fence fits nothing. Said inside, for the transaction: a SET of the function ends
-- with it, before the commit.
CREATE FUNCTION mailbox_claim(
    in_kind text, in_keys text[], in_limit int, in_worker text, in_lease_s float8, in_events_max int
) RETURNS TABLE (
    mailbox_key text, mailbox_id bigint, fence bigint, processed bigint, appended bigint, failures int,
    seq bigint, type text, payload jsonb, created_at timestamptz
) LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    due text[];
    claims mailboxes[];
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    IF in_keys IS NULL THEN
        SELECT array_agg(d.key) INTO due FROM (
            SELECT key FROM mailboxes
            WHERE kind = in_kind AND claimable_at <= statement_timestamp()
            ORDER BY claimable_at
            LIMIT in_limit
            FOR NO KEY UPDATE SKIP LOCKED) AS d;
    ELSE
        SELECT array_agg(d.key) INTO due FROM (
            SELECT m.key FROM unnest(in_keys) AS nudged (key)
            JOIN mailboxes AS m ON m.kind = in_kind AND m.key = nudged.key
            WHERE m.claimable_at <= statement_timestamp()
            LIMIT in_limit
            FOR NO KEY UPDATE OF m SKIP LOCKED) AS d;
    END IF;
    IF due IS NULL THEN
        RETURN;
    END IF;

    WITH claimed AS (
        UPDATE mailboxes AS m
        SET processing_status = 'processing', fence = random(1, 9223372036854775807), locked_by = in_worker,
            processing_started_at = clock_timestamp(),
            claimable_at = clock_timestamp() + make_interval(secs => in_lease_s),
            failures = m.failures + (m.processing_status = 'processing')::int,
            last_error = CASE WHEN m.processing_status = 'processing' THEN 'its worker was lost: ' || m.locked_by
                              ELSE m.last_error END
        FROM unnest(due) AS ours (key)
        WHERE m.kind = in_kind AND m.key = ours.key
        RETURNING m AS mailbox
    )
    SELECT array_agg(mailbox) INTO claims FROM claimed;

    RETURN QUERY
    SELECT c.key, c.id, c.fence, c.processed, c.appended, c.failures, e.seq, e.type, e.payload, e.created_at
    FROM unnest(claims) AS c
    LEFT JOIN LATERAL (
        SELECT p.seq, p.type, p.payload, p.created_at FROM mailbox_events AS p
        WHERE p.mailbox_id = c.id AND p.seq > c.processed AND p.seq <= c.appended AND p.processed_at IS NULL
        ORDER BY p.seq
        LIMIT in_events_max) AS e ON true;
END $$;
