-- Groups of allocations and releases find their rows by index, whatever the tables held when a session planned them. A plan made
-- while `allocations` was empty joined by hash, and read all of it for every group until the table was analysed.

-- As before (0047, 0060), but that what `pod_takes` asks of a pod is spelled out: a function is run for each call, and took a third
-- of the time. A pod at which calls did not reach the agent, or of which handlers hang, is rare and left to `allocate_call`.
CREATE OR REPLACE FUNCTION allocate_new_calls(
    in_ids uuid[], in_calls text[], in_merchants text[], in_pods text[], in_slots int[], in_incarnations bigint[]
) RETURNS TABLE (id uuid, source_pool text, base_url text) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_material = off
SET lock_timeout = '50ms' SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    -- For this transaction, as `allocate_call` does: a setting of the function would end before the commit.
    PERFORM set_config('synchronous_commit', 'off', true);
    RETURN QUERY
    WITH given AS (
        INSERT INTO allocations AS a (id, has_attempt, call, merchant_id, pod, slot, incarnation, source_pool, begun_at)
        SELECT w.id, false, w.call, w.merchant, p.name, w.slot, p.incarnation,
               CASE WHEN p.tier LIKE 'merchant:%' THEN p.tier ELSE 'pool:' || p.tier END, clock_timestamp()
        FROM unnest(in_ids, in_calls, in_merchants, in_pods, in_slots, in_incarnations)
            AS w (id, call, merchant, pod, slot, incarnation)
        JOIN pods AS p ON p.name = w.pod AND p.incarnation = w.incarnation
        WHERE w.slot <= p.calls_max AND p.missed < 2 AND p.hanging = '{}'
          AND p.is_ready AND p.changing_since IS NULL AND p.leaving_since IS NULL
          AND (p.draining_until IS NULL OR p.draining_until <= clock_timestamp())
          AND (p.named = '{}'
               OR NOT EXISTS (SELECT FROM unnest(p.named) AS said (call)
                              WHERE NOT EXISTS (SELECT FROM allocations AS l
                                                WHERE l.call = said.call AND l.pod = p.name AND l.ended_at IS NULL)))
          AND NOT EXISTS (SELECT FROM allocations AS l
                          WHERE l.pod = p.name AND l.slot > p.calls_max AND l.ended_at IS NULL)
        ORDER BY w.call
        ON CONFLICT DO NOTHING
        RETURNING a.id, a.pod, a.source_pool
    )
    SELECT g.id, g.source_pool, p.base_url FROM given AS g JOIN pods AS p ON p.name = g.pod;
END $$;

-- As before (0047), but that one statement ends all live rows of a group, locked by id; the others are looked at one by one.
CREATE OR REPLACE FUNCTION release_calls(
    in_calls text[], in_pods text[], in_turns smallint[], in_tombstones uuid[], in_why text
) RETURNS TABLE (no bigint, id uuid, pod text, source_pool text) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_material = off
SET lock_timeout = '100ms' SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    wanted record;
    ended bigint[] := '{}';
BEGIN
    -- Nobody waits for the disk. A release that a crash of this server undoes is found by the pod's heartbeats, or by the end
    -- of the attempt.
    PERFORM set_config('synchronous_commit', 'off', true);
    IF array_to_string(in_pods, '') <> '' THEN
        FOR wanted IN SELECT w.call, w.pod FROM unnest(in_calls, in_pods) AS w (call, pod) WHERE w.pod <> '' ORDER BY w.pod LOOP
            UPDATE pods AS p SET named = array_remove(p.named, wanted.call)
            WHERE p.name = wanted.pod AND wanted.call = ANY(p.named);
        END LOOP;
    END IF;
    FOR no, id, pod, source_pool IN
        WITH mine AS (
            SELECT a.id, w.no, w.pod
            FROM unnest(in_calls, in_pods, in_turns) WITH ORDINALITY AS w (call, pod, turn, no)
            JOIN allocations AS a ON a.call = w.call
            WHERE a.ended_at IS NULL AND (w.pod = '' OR a.pod = w.pod) AND (w.turn IS NULL OR a.turn = w.turn)
            ORDER BY a.id, w.no
            FOR NO KEY UPDATE OF a
        )
        UPDATE allocations AS a
        SET ended_at = clock_timestamp(), why = in_why,
            -- Who lets go of a call had it.
            joined_at = CASE WHEN mine.pod <> '' THEN coalesce(a.joined_at, clock_timestamp()) ELSE a.joined_at END
        FROM mine
        WHERE a.id = mine.id
        RETURNING mine.no, a.id, a.pod, a.source_pool
    LOOP
        ended := ended || no;
        RETURN NEXT;
    END LOOP;
    IF cardinality(ended) = cardinality(in_calls) THEN
        RETURN;
    END IF;
    FOR wanted IN
        SELECT w.call, w.pod, w.turn, w.tombstone, w.no
        FROM unnest(in_calls, in_pods, in_turns, in_tombstones) WITH ORDINALITY AS w (call, pod, turn, tombstone, no)
        LEFT JOIN allocations AS a ON a.call = w.call
        WHERE w.no <> ALL(ended)
        ORDER BY a.id, w.no
    LOOP
        -- Its row may have come in since the statement above began.
        UPDATE allocations AS a
        SET ended_at = clock_timestamp(), why = in_why,
            joined_at = CASE WHEN wanted.pod <> '' THEN coalesce(a.joined_at, clock_timestamp()) ELSE a.joined_at END
        WHERE a.call = wanted.call AND a.ended_at IS NULL AND (wanted.pod = '' OR a.pod = wanted.pod)
          AND (wanted.turn IS NULL OR a.turn = wanted.turn)
        RETURNING a.id, a.pod, a.source_pool INTO id, pod, source_pool;
        IF FOUND THEN
            no := wanted.no;
            RETURN NEXT;
        ELSIF wanted.pod <> '' THEN
            -- It is over already: the carrier was faster. Its agent was there all the same.
            UPDATE allocations AS a SET joined_at = clock_timestamp()
            WHERE a.call = wanted.call AND a.pod = wanted.pod AND a.joined_at IS NULL AND a.ended_at IS NOT NULL;
        ELSE
            INSERT INTO allocations (id, has_attempt, call, begun_at, ended_at, why)
            VALUES (wanted.tombstone, false, wanted.call, clock_timestamp(), clock_timestamp(), in_why)
            ON CONFLICT DO NOTHING;
        END IF;
    END LOOP;
END $$;
