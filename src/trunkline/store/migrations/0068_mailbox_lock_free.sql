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
