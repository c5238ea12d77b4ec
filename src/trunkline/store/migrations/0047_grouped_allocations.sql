-- Allocations and releases in groups: what several requests ask at once is one transaction. And what Postgres picks from when it
-- has to pick itself.

-- Pods that are there. `is_silent`: not heard for three of its own intervals, as `pod_is_silent` says. `is_overdue`: its last
-- heartbeat is late.
CREATE VIEW present_pods AS
SELECT p.name, p.incarnation, p.tier, p.base_url, p.calls_max, p.heard_at, p.interval_s, p.named, p.missed, p.missed_at,
       p.sequence > 0 AND greatest(p.heard_at, h.since) < clock_timestamp() - make_interval(secs => p.interval_s + 2) AS is_overdue,
       p.sequence > 0 AND greatest(p.heard_at, h.since)
           < clock_timestamp() - make_interval(secs => greatest(15, 3 * p.interval_s)) AS is_silent
FROM pods AS p CROSS JOIN pod_hearing AS h
WHERE p.is_ready AND p.changing_since IS NULL AND p.leaving_since IS NULL
  AND (p.draining_until IS NULL OR p.draining_until <= clock_timestamp());

-- Slots that could take a call. What `pod_takes` asks of one pod, for all of them at once: a function that is called for each
-- of 5,000 pods takes 80 ms. `missed` and `is_silent` are left to who asks: a call that waits takes what a dial may not be
-- kept on.
CREATE VIEW free_pod_slots AS
SELECT p.name, s.slot, p.incarnation, p.tier, p.base_url, p.heard_at, p.interval_s, p.missed, p.missed_at, p.is_overdue,
       p.is_silent
FROM present_pods AS p
CROSS JOIN LATERAL generate_series(1, p.calls_max) AS s (slot)
WHERE NOT EXISTS (SELECT FROM allocations AS l WHERE l.pod = p.name AND l.slot = s.slot AND l.ended_at IS NULL)
  AND NOT EXISTS (SELECT FROM allocations AS l WHERE l.pod = p.name AND l.slot > p.calls_max AND l.ended_at IS NULL)
  AND (p.missed < 2 OR NOT EXISTS (SELECT FROM allocations AS l WHERE l.pod = p.name AND l.ended_at IS NULL))
  AND (p.named = '{}'
       OR NOT EXISTS (SELECT FROM unnest(p.named) AS said (call)
                      WHERE NOT EXISTS (SELECT FROM allocations AS l
                                        WHERE l.call = said.call AND l.pod = p.name AND l.ended_at IS NULL)));

-- Gives new calls without an attempt the slots that Valkey proposes for them. Whoever is not in the answer asks `allocate_call`,
-- alone: the call is known already, the slot is another's, or the pod does not take it. In the order of calls, so that two
-- groups do not wait for each other on these; should they on slots, which Valkey proposes once, they do not wait long.
CREATE FUNCTION allocate_new_calls(
    in_ids uuid[], in_calls text[], in_merchants text[], in_pods text[], in_slots int[], in_incarnations bigint[]
) RETURNS TABLE (id uuid, source_pool text, base_url text) LANGUAGE plpgsql
SET enable_seqscan = off SET lock_timeout = '50ms' SET plan_cache_mode = force_generic_plan AS $$
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
        WHERE w.slot <= p.calls_max AND pod_takes(p, false)
        ORDER BY w.call
        ON CONFLICT DO NOTHING
        RETURNING a.id, a.pod, a.source_pool
    )
    SELECT g.id, g.source_pool, p.base_url FROM given AS g JOIN pods AS p ON p.name = g.pod;
END $$;

-- Ends the allocations of calls. in_pods: the pod that lets go, '' when the platform or an operator releases. in_turns: the turn
-- of who lets go, NULL for any: an agent that lost the call to another one ends nothing. A call that has no row leaves a
-- tombstone too (its id is in in_tombstones) if no pod says so, so that an answer webhook that comes after the end gets a
-- hang-up and not a pod. `no` is the place in the arrays, from 1; calls that had no live row are not in the answer.
-- A pod that lets go of a call names it no more: it is free before its next heartbeat says so. Pods are locked before
-- allocations, by name; allocations by id. A row that somebody else holds makes the others wait for 100 ms at most.
CREATE FUNCTION release_calls(in_calls text[], in_pods text[], in_turns smallint[], in_tombstones uuid[], in_why text)
RETURNS TABLE (no bigint, id uuid, pod text, source_pool text) LANGUAGE plpgsql
SET enable_seqscan = off SET lock_timeout = '100ms' SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    wanted record;
BEGIN
    -- Nobody waits for the disk. A release that a crash of this server undoes is found by the pod's heartbeats, or by the end
    -- of the attempt.
    PERFORM set_config('synchronous_commit', 'off', true);
    -- Row by row: a statement for all of them takes longer to begin than a few rows take.
    IF array_to_string(in_pods, '') <> '' THEN
        FOR wanted IN SELECT w.call, w.pod FROM unnest(in_calls, in_pods) AS w (call, pod) WHERE w.pod <> '' ORDER BY w.pod LOOP
            UPDATE pods AS p SET named = array_remove(p.named, wanted.call)
            WHERE p.name = wanted.pod AND wanted.call = ANY(p.named);
        END LOOP;
    END IF;
    FOR wanted IN
        SELECT w.call, w.pod, w.turn, w.tombstone, w.no
        FROM unnest(in_calls, in_pods, in_turns, in_tombstones) WITH ORDINALITY AS w (call, pod, turn, tombstone, no)
        LEFT JOIN allocations AS a ON a.call = w.call
        ORDER BY a.id, w.no
    LOOP
        UPDATE allocations AS a
        SET ended_at = clock_timestamp(), why = in_why,
            -- Who lets go of a call had it.
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
