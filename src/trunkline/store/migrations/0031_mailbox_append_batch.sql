-- Appends in batches, with one walk of an index for each thing that has to be known, and none for what is known already:
-- mailboxes are nearly always there (so they are locked first, and made only if some are missing), their events are
-- nearly always new (so they are numbered by the caller, and anew only if some are not), and a row that is locked stays
-- where it is (so it is updated at its place). Measured: a seventh less of Postgres' time for a batch of 500.
DROP FUNCTION mailbox_append(text[], text[], int[], int[], text[], text[], jsonb[], int);
DROP FUNCTION mailbox_lock(text[], text[], int);

-- Lock mailboxes, sorted, and make those that are missing; returns them as they are under the lock, in the order in
-- which they were named, and where their rows are. Nobody waits for longer than `patience_ms`: one mailbox that somebody
-- holds must not hold up the others.
CREATE FUNCTION mailbox_lock(
    in_kinds text[], in_keys text[], patience_ms int,
    OUT ids bigint[], OUT counts bigint[], OUT statuses text[], OUT rows_at tid[]
) LANGUAGE plpgsql SET enable_seqscan = off AS $$
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
