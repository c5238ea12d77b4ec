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
) RETURNS bigint LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    RETURN append_events(json_build_array(json_build_object(
        'kind', kind, 'key', key, 'type', event_type, 'payload', coalesce(payload, '{}'),
        'dedupe_key', coalesce(dedupe_key, gen_random_uuid()::text)))::text)::json -> 0 ->> 'seq';
END $$;
