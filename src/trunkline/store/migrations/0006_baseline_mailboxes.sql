-- Mailboxes: an entity with pending events, processed by one worker at a time, all events at once. This file stands alone: an
-- application has it in a schema of its own, without anything else of the platform.

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
-- They find their rows by their keys, however the tables have grown since the plan was made. A plan is made once for a connection,
-- often while the tables are young, and kept: one that reads all of a small table, or all mailboxes of a kind, reads all of a
-- large one too, until the table is analyzed. Measured at 200 dials a second on a new database: 450 entries of mailboxes were read
-- for each dial, and more with every one. So the planner is left one way: row by row, through an index.

-- Lock mailboxes, sorted, and make those that are missing; returns them as they are under the lock, in the order in
-- which they were named, and where their rows are. Nobody waits for longer than `patience_ms`: one mailbox that somebody
-- holds must not hold up the others.
CREATE FUNCTION mailbox_lock(
    in_kinds text[], in_keys text[], patience_ms int,
    OUT ids bigint[], OUT counts bigint[], OUT statuses text[], OUT rows_at tid[]
) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    PERFORM set_config('lock_timeout', patience_ms::text, true);
    LOOP
        -- A row that was waited for is returned as it was committed, not as this statement's snapshot has it.
        WITH locked AS (
            SELECT wanted.place, m.id, m.appended, m.processing_status, m.ctid AS row_at
            FROM unnest(in_kinds, in_keys) WITH ORDINALITY AS wanted (kind, key, place)
            JOIN mailboxes AS m ON m.kind = wanted.kind AND m.key = wanted.key
            ORDER BY m.kind, m.key
            FOR NO KEY UPDATE OF m
        )
        SELECT array_agg(l.id ORDER BY l.place), array_agg(l.appended ORDER BY l.place),
               array_agg(l.processing_status ORDER BY l.place), array_agg(l.row_at ORDER BY l.place)
        INTO ids, counts, statuses, rows_at
        FROM locked AS l;
        EXIT WHEN cardinality(ids) = cardinality(in_keys);

        INSERT INTO mailboxes (kind, key)
        SELECT wanted.kind, wanted.key FROM unnest(in_kinds, in_keys) AS wanted (kind, key)
        WHERE NOT EXISTS (SELECT FROM mailboxes AS m WHERE m.kind = wanted.kind AND m.key = wanted.key)
        ORDER BY wanted.kind, wanted.key
        ON CONFLICT DO NOTHING;
    END LOOP;
END $$;

-- Lock those of these mailboxes that nobody else holds, and make those that are missing; returns their places among the
-- ones named. It waits for nobody: a batch that ran into a mailbox which a transaction keeps open asks this for what it can
-- write without it. A mailbox that an open transaction has made is seen by nobody else, and making it again waits for that
-- transaction: a millisecond each, in the order of their names. When many were met that way, those that are left count as
-- held too: they are tried one by one later, and the batch does not wait for them.
CREATE FUNCTION mailbox_lock_free(in_kinds text[], in_keys text[]) RETURNS int[] LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    missing record;
    held int := 0;
    free int[];
BEGIN
    PERFORM set_config('lock_timeout', '1', true);
    FOR missing IN
        SELECT wanted.kind, wanted.key FROM unnest(in_kinds, in_keys) AS wanted (kind, key)
        WHERE NOT EXISTS (SELECT FROM mailboxes AS m WHERE m.kind = wanted.kind AND m.key = wanted.key)
        ORDER BY wanted.kind, wanted.key
    LOOP
        EXIT WHEN held >= 20;
        BEGIN
            INSERT INTO mailboxes (kind, key) VALUES (missing.kind, missing.key) ON CONFLICT DO NOTHING;
        EXCEPTION WHEN lock_not_available THEN
            held := held + 1;
        END;
    END LOOP;

    WITH locked AS (
        SELECT wanted.place
        FROM unnest(in_kinds, in_keys) WITH ORDINALITY AS wanted (kind, key, place)
        JOIN mailboxes AS m ON m.kind = wanted.kind AND m.key = wanted.key
        ORDER BY m.kind, m.key
        FOR NO KEY UPDATE OF m SKIP LOCKED
    )
    SELECT array_agg(l.place::int) INTO free FROM locked AS l;
    RETURN coalesce(free, '{}');
END $$;

-- Appends in batches take one walk of an index for each thing that has to be known, and none for what is known already:
-- mailboxes are nearly always there (so they are locked first, and made only if some are missing), their events are
-- nearly always new (so they are numbered by the caller, and anew only if some are not), and a row that is locked stays
-- where it is (so it is updated at its place). Measured: a seventh less of Postgres' time for a batch of 500.
--
-- Append events that are new to their mailbox and add what went in to its counter, under the mailbox's lock. A doubled
-- event has its dedupe key already and raises nothing. `idle` becomes `queued`; `processing` stays, because completion
-- compares the counter; `dead` stays, and the caller alarms. `in_boxes` says which of the mailboxes an event is for,
-- `in_ordinals` the how manieth of this batch it is there, and `in_amounts` how many are for each. Look-ups by place
-- instead of joins: a join of two sets that the planner takes for small would be a nested loop over both.
-- The answer has a row for each mailbox, with its counter and status before: its new events are numbered from there, in
-- their order. And it has a row for each event that was there already: its place among those sent, and its number.
CREATE FUNCTION mailbox_append(
    in_kinds text[], in_keys text[], in_amounts int[],
    in_boxes int[], in_ordinals int[], in_dedupe_keys text[], in_types text[], in_payloads jsonb[], patience_ms int
) RETURNS TABLE (in_box int, number bigint, status_before text, known_at int)
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    amounts int[] := in_amounts;
    ids bigint[];
    counts bigint[];
    statuses text[];
    rows_at tid[];
    known_places int[];
    known_boxes int[];
    known_seqs bigint[];
    known_box int;
BEGIN
    SELECT l.ids, l.counts, l.statuses, l.rows_at INTO ids, counts, statuses, rows_at
    FROM mailbox_lock(in_kinds, in_keys, patience_ms) AS l;

    -- A mailbox that never had an event knows none.
    SELECT array_agg(e.place::int), array_agg(e.box), array_agg(known.seq)
    INTO known_places, known_boxes, known_seqs
    FROM unnest(in_boxes, in_dedupe_keys) WITH ORDINALITY AS e (box, dedupe_key, place)
    JOIN mailbox_events AS known ON known.mailbox_id = ids[e.box] AND known.dedupe_key = e.dedupe_key
    WHERE counts[e.box] > 0;

    IF known_places IS NULL THEN
        INSERT INTO mailbox_events (mailbox_id, seq, dedupe_key, type, payload)
        SELECT ids[e.box], counts[e.box] + e.ordinal, e.dedupe_key, e.type, e.payload
        FROM unnest(in_boxes, in_ordinals, in_dedupe_keys, in_types, in_payloads)
             AS e (box, ordinal, dedupe_key, type, payload);
    ELSE
        FOREACH known_box IN ARRAY known_boxes LOOP
            amounts[known_box] := amounts[known_box] - 1;
        END LOOP;
        INSERT INTO mailbox_events (mailbox_id, seq, dedupe_key, type, payload)
        SELECT ids[e.box], counts[e.box] + row_number() OVER (PARTITION BY e.box ORDER BY e.place),
               e.dedupe_key, e.type, e.payload
        FROM unnest(in_boxes, in_dedupe_keys, in_types, in_payloads)
             WITH ORDINALITY AS e (box, dedupe_key, type, payload, place)
        WHERE e.place <> ALL (known_places);
    END IF;

    UPDATE mailboxes AS m
    SET appended = m.appended + added.amount,
        processing_status = CASE WHEN m.processing_status = 'idle' THEN 'queued' ELSE m.processing_status END,
        claimable_at = CASE WHEN m.processing_status = 'idle' THEN clock_timestamp() ELSE m.claimable_at END
    FROM unnest(rows_at, amounts) AS added (row_at, amount)
    WHERE m.ctid = added.row_at AND added.amount > 0;

    RETURN QUERY
    SELECT box, counts[box], statuses[box], NULL::int FROM generate_series(1, cardinality(ids)) AS box
    UNION ALL
    SELECT known.box, known.seq, NULL, known.place
    FROM unnest(known_boxes, known_seqs, known_places) AS known (box, seq, place);
END $$;

-- One event, alone: what an append is when nothing else arrives at the moment. Without sets to join and to count, it
-- costs a third of what `mailbox_append` takes for a batch of one, and means exactly the same.
CREATE FUNCTION mailbox_append_one(
    in_kind text, in_key text, in_dedupe_key text, in_type text, in_payload jsonb, patience_ms int,
    OUT number bigint, OUT is_new boolean, OUT status_before text
) LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    box bigint;
    counted bigint;
BEGIN
    PERFORM set_config('lock_timeout', patience_ms::text, true);
    LOOP
        SELECT m.id, m.appended, m.processing_status INTO box, counted, status_before
        FROM mailboxes AS m WHERE m.kind = in_kind AND m.key = in_key
        FOR NO KEY UPDATE;
        EXIT WHEN FOUND;
        -- A mailbox that is new has this event and no other.
        INSERT INTO mailboxes (kind, key, appended, processing_status, claimable_at)
        VALUES (in_kind, in_key, 1, 'queued', clock_timestamp())
        ON CONFLICT DO NOTHING
        RETURNING id INTO box;
        IF FOUND THEN
            INSERT INTO mailbox_events (mailbox_id, seq, dedupe_key, type, payload)
            VALUES (box, 1, in_dedupe_key, in_type, in_payload);
            number := 1;
            is_new := true;
            status_before := 'idle';
            RETURN;
        END IF;
    END LOOP;

    number := counted + 1;
    INSERT INTO mailbox_events (mailbox_id, seq, dedupe_key, type, payload)
    VALUES (box, number, in_dedupe_key, in_type, in_payload)
    ON CONFLICT ON CONSTRAINT mailbox_events_once DO NOTHING;
    is_new := FOUND;
    IF is_new THEN
        UPDATE mailboxes AS m
        SET appended = number,
            processing_status = CASE WHEN m.processing_status = 'idle' THEN 'queued' ELSE m.processing_status END,
            claimable_at = CASE WHEN m.processing_status = 'idle' THEN clock_timestamp() ELSE m.claimable_at END
        WHERE m.kind = in_kind AND m.key = in_key;
    ELSE
        SELECT e.seq INTO number FROM mailbox_events AS e
        WHERE e.mailbox_id = box AND e.dedupe_key = in_dedupe_key;
    END IF;
END $$;

-- Claim mailboxes that have work, `queued` whose turn has come or `processing` under a lease that ran out, and read their
-- pending events in order, at most `in_events_max` of each. With keys given only those: they were nudged. Without, this
-- is the sweep, and the scan at start. A lost lease counts as a failure: what kills its worker must end as dead too.
-- The events are read by a later statement: one that committed while the first waited for a lock is counted there, and
-- its snapshot would not show it. Nobody waits for the disk (measured: 0.5 ms instead of 4): a claim that goes down with
-- the server was never made, and its fence fits nothing. Said inside, for the transaction: a SET of the function ends
-- with it, before the commit.
-- Mailboxes that were named are looked up by their keys: `coalesce` keeps the planner from the index of what is claimable, which may
-- have thousands. What is locked is changed at its place, and returned in that order: which ones are taken goes by age.
CREATE FUNCTION mailbox_claim(
    in_kind text, in_keys text[], in_limit int, in_worker text, in_lease_s float8, in_events_max int
) RETURNS TABLE (
    mailbox_key text, mailbox_id bigint, fence bigint, processed bigint, appended bigint, failures int,
    seq bigint, type text, payload jsonb, created_at timestamptz
) LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    due tid[];
    claims mailboxes[];
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    IF in_keys IS NULL THEN
        SELECT array_agg(d.row_at) INTO due FROM (
            SELECT ctid AS row_at FROM mailboxes
            WHERE kind = in_kind AND claimable_at <= statement_timestamp()
            ORDER BY claimable_at
            LIMIT in_limit
            FOR NO KEY UPDATE SKIP LOCKED) AS d;
    ELSE
        SELECT array_agg(d.row_at) INTO due FROM (
            SELECT ctid AS row_at FROM mailboxes
            WHERE kind = in_kind AND key = ANY(in_keys)
              AND coalesce(claimable_at, 'infinity') <= statement_timestamp()
            LIMIT in_limit
            FOR NO KEY UPDATE SKIP LOCKED) AS d;
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
        WHERE m.ctid = ANY(due)
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

-- One mailbox, by name: what a claim is when a nudge comes alone. Without sets to join, it costs less than half of what
-- `mailbox_claim` takes for one (measured: 0.4 ms instead of 0.9), and means exactly the same: it says why
-- the events are read by a later statement, and why nobody waits for the disk.
CREATE FUNCTION mailbox_claim_one(
    in_kind text, in_key text, in_worker text, in_lease_s float8, in_events_max int
) RETURNS TABLE (
    mailbox_key text, mailbox_id bigint, fence bigint, processed bigint, appended bigint, failures int,
    seq bigint, type text, payload jsonb, created_at timestamptz
) LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    box mailboxes;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM 1 FROM mailboxes
    WHERE kind = in_kind AND key = in_key AND claimable_at <= statement_timestamp()
    FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;

    UPDATE mailboxes AS m
    SET processing_status = 'processing', fence = random(1, 9223372036854775807), locked_by = in_worker,
        processing_started_at = clock_timestamp(),
        claimable_at = clock_timestamp() + make_interval(secs => in_lease_s),
        failures = m.failures + (m.processing_status = 'processing')::int,
        last_error = CASE WHEN m.processing_status = 'processing' THEN 'its worker was lost: ' || m.locked_by
                          ELSE m.last_error END
    WHERE m.kind = in_kind AND m.key = in_key
    RETURNING m.* INTO box;

    RETURN QUERY
    SELECT box.key, box.id, box.fence, box.processed, box.appended, box.failures,
           e.seq, e.type, e.payload, e.created_at
    FROM (VALUES (1)) AS once (n)
    LEFT JOIN (
        SELECT p.seq, p.type, p.payload, p.created_at FROM mailbox_events AS p
        WHERE p.mailbox_id = box.id AND p.seq > box.processed AND p.seq <= box.appended AND p.processed_at IS NULL
        ORDER BY p.seq
        LIMIT in_events_max) AS e ON true;
END $$;

-- Complete mailboxes up to the event that was handled, guarded by the fence: rows not returned lost their lease. The
-- counter decides in this very UPDATE whether more has come: a look at the events instead would miss one whose append
-- commits a moment later. Last in the handler's transaction, which may not be left open beside these locks.
CREATE FUNCTION mailbox_complete(
    in_kind text, in_keys text[], in_fences bigint[], in_handled bigint[], lock_timeout_ms text, idle_timeout_ms text
) RETURNS TABLE (key text, processing_status text, took interval) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
BEGIN
    PERFORM set_config('lock_timeout', lock_timeout_ms, true),
            set_config('idle_in_transaction_session_timeout', idle_timeout_ms, true);
    RETURN QUERY
    WITH ours AS (
        SELECT m.kind, m.key, m.id, m.fence, m.processed, c.handled
        FROM mailboxes AS m
        JOIN unnest(in_keys, in_fences, in_handled) AS c (key, fence, handled) ON c.key = m.key AND c.fence = m.fence
        WHERE m.kind = in_kind AND m.key = ANY(in_keys) AND m.processing_status = 'processing'
        ORDER BY m.key
        FOR NO KEY UPDATE OF m
    ), completed AS (
        UPDATE mailboxes AS m
        SET processing_status = CASE WHEN m.appended = ours.handled THEN 'idle' ELSE 'queued' END,
            claimable_at = CASE WHEN m.appended = ours.handled THEN NULL ELSE clock_timestamp() END,
            processed = ours.handled, failures = 0, last_error = NULL, locked_by = NULL,
            last_processed_at = clock_timestamp()
        FROM ours
        WHERE m.kind = ours.kind AND m.key = ours.key AND m.fence = ours.fence
        RETURNING m.key, m.processing_status, m.processing_started_at
    ), marked AS (
        UPDATE mailbox_events AS e
        SET processed_at = clock_timestamp()
        -- By address, which leaves the planner no choice.
        WHERE e.ctid = ANY(ARRAY(
            SELECT p.ctid
            FROM ours
            CROSS JOIN LATERAL (
                SELECT p.ctid FROM mailbox_events AS p
                WHERE p.mailbox_id = ours.id AND p.seq > ours.processed AND p.seq <= ours.handled
                  AND p.processed_at IS NULL
                ORDER BY p.seq) AS p))
    )
    SELECT key, processing_status, clock_timestamp() - processing_started_at FROM completed;
END $$;

-- Events from anywhere: two functions that append in the transaction of whoever calls them. They find the tables by the
-- schema in which they were made, whatever search path the caller has. They wait for a mailbox as long as the caller's own
-- lock_timeout says, and leave it as it was.

-- For the library, from any driver: a JSON array of events in, a JSON array of receipts out, in that order. Text both ways,
-- so that no driver has to know a type. All mailboxes are locked first, sorted: two callers that name the same ones do not
-- wait for each other.
CREATE FUNCTION append_events(in_events text) RETURNS text LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    lock_timeout_before text := current_setting('lock_timeout');
    patience_ms int := (extract(epoch FROM current_setting('lock_timeout')::interval) * 1000)::int;
    receipts json[] := '{}';
    event record;
    receipt record;
BEGIN
    IF json_array_length(in_events::json) > 1 THEN
        PERFORM mailbox_lock(array_agg(m.kind), array_agg(m.key), patience_ms)
        FROM (SELECT DISTINCT e.kind, e.key FROM json_to_recordset(in_events::json) AS e (kind text, key text)) AS m;
    END IF;
    FOR event IN
        SELECT e.* FROM json_to_recordset(in_events::json)
            AS e (kind text, key text, dedupe_key text, type text, payload jsonb)
    LOOP
        SELECT a.number, a.is_new, a.status_before INTO receipt
        FROM mailbox_append_one(event.kind, event.key, event.dedupe_key, event.type, event.payload, patience_ms) AS a;
        receipts := receipts || json_build_object(
            'seq', receipt.number, 'created', receipt.is_new, 'status_before', receipt.status_before);
    END LOOP;
    PERFORM set_config('lock_timeout', lock_timeout_before, true);
    RETURN array_to_json(receipts)::text;
END $$;

-- For whoever writes SQL: append one event, and return its number in its mailbox, or that of the event which is there with
-- the same dedupe key. It exists when the caller's transaction is committed, and is found within a second. The mailbox is
-- locked until then: append last, and commit.
CREATE FUNCTION append_event(
    kind text, key text, event_type text, payload jsonb DEFAULT '{}', dedupe_key text DEFAULT NULL
) RETURNS bigint LANGUAGE sql SET search_path FROM CURRENT AS $$
    SELECT (append_events(json_build_array(json_build_object(
        'kind', kind, 'key', key, 'type', event_type, 'payload', coalesce(payload, '{}'),
        'dedupe_key', coalesce(dedupe_key, gen_random_uuid()::text)))::text)::json -> 0 ->> 'seq')::bigint
$$;
