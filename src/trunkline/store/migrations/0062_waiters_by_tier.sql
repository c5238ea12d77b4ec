-- Who waits for other tiers holds up nobody.

-- As before (0053), but for those who wait: a free slot is left to the oldest of those before this call that waits in its tier and
-- was not left one yet, and is this call's if there is none. So each of them is left one slot at most, and none of a tier in which
-- it does not look. Who came before is looked through once per tier, however many slots are free; without waiters it costs nothing.
CREATE OR REPLACE FUNCTION allocate_call(
    in_id uuid, in_call text, in_attempt uuid, in_merchant text, in_pod text, in_slot int, in_incarnation bigint,
    in_tiers text[], in_wait_max_s float8, in_silence_s float8, in_tombstone_s float8
) RETURNS TABLE (result text, id uuid, pod text, slot int, incarnation bigint, source_pool text, base_url text, turn smallint,
                 is_existing boolean, waiting_before int) LANGUAGE plpgsql
SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    mine allocations;
    attempt record;
    place record;
    is_pick boolean;
    before_me int;
    -- Where those wait who came before, in their order, which of them a slot was left to, and how far each tier was looked through.
    waits text[];
    is_served boolean[];
    looked_at int[];
    at int;
BEGIN
    -- For this transaction: a setting of the function would end before the commit.
    PERFORM set_config('synchronous_commit', 'off', true);
    IF in_attempt IS NOT NULL THEN
        SELECT a.state, a.hang_up_at IS NOT NULL AS is_unwanted,
               a.lead_id IS NOT NULL AND EXISTS (SELECT FROM attempts AS n
                                                 WHERE n.lead_id = a.lead_id AND (n.ordinal, n.intent_at) > (a.ordinal, a.intent_at)) AS is_old
        INTO attempt FROM attempts AS a WHERE a.id = in_attempt FOR SHARE OF a;
        IF FOUND THEN
            IF attempt.state IN ('ended', 'rejected') THEN
                RETURN QUERY SELECT 'ended', in_attempt, NULL::text, NULL::int, NULL::bigint, '', '', 0::smallint, false, 0;
                RETURN;
            ELSIF attempt.is_unwanted OR attempt.is_old THEN
                RETURN QUERY SELECT 'superseded', in_attempt, NULL::text, NULL::int, NULL::bigint, '', '', 0::smallint, false, 0;
                RETURN;
            ELSIF attempt.state IN ('absent', 'unknown') THEN
                RETURN QUERY SELECT 'given_up', in_attempt, NULL::text, NULL::int, NULL::bigint, '', '', 0::smallint, false, 0;
                RETURN;
            END IF;
        END IF;
    END IF;
    -- The tombstone of a call without an attempt is short: who tries the router out uses the same id again.
    DELETE FROM allocations AS a
    WHERE a.call = in_call AND in_attempt IS NULL AND NOT a.has_attempt
      AND a.ended_at < clock_timestamp() - make_interval(secs => in_tombstone_s);
    INSERT INTO allocations AS a (id, has_attempt, call, merchant_id)
    VALUES (coalesce(in_attempt, in_id), in_attempt IS NOT NULL, in_call, in_merchant)
    ON CONFLICT DO NOTHING;
    IF in_attempt IS NULL THEN
        SELECT a.* INTO mine FROM allocations AS a WHERE a.call = in_call FOR UPDATE;
    ELSE
        SELECT a.* INTO mine FROM allocations AS a WHERE a.id = in_attempt FOR UPDATE;
    END IF;
    IF NOT FOUND THEN
        -- The call has a row under another id, or the row was removed while it was waited for.
        RETURN QUERY SELECT 'taken', in_attempt, NULL::text, NULL::int, NULL::bigint, '', '', 0::smallint, false, 0;
        RETURN;
    END IF;
    IF mine.call IS DISTINCT FROM in_call AND mine.call IS NOT NULL THEN
        RETURN QUERY SELECT 'taken', mine.id, NULL::text, NULL::int, NULL::bigint, '', '', 0::smallint, false, 0;
        RETURN;
    END IF;
    IF mine.ended_at IS NOT NULL AND NOT (mine.has_attempt AND mine.why = 'doubt') THEN
        RETURN QUERY SELECT 'ended', mine.id, NULL::text, NULL::int, NULL::bigint, '', '', mine.turn, true, 0;
        RETURN;
    END IF;
    IF mine.ended_at IS NULL AND mine.pod IS NOT NULL THEN
        SELECT p.base_url INTO place FROM pods AS p WHERE p.name = mine.pod AND p.incarnation = mine.incarnation;
        IF FOUND THEN
            UPDATE allocations AS a SET call = in_call, begun_at = coalesce(a.begun_at, clock_timestamp()) WHERE a.id = mine.id;
            RETURN QUERY SELECT 'pod', mine.id, mine.pod, mine.slot, mine.incarnation, mine.source_pool, place.base_url,
                                mine.turn, true, 0;
            RETURN;
        END IF;
    END IF;
    -- Without a pod from here on: it never had one, or that one is gone.
    UPDATE allocations AS a
    SET call = in_call, pod = NULL, slot = NULL, incarnation = NULL, ended_at = NULL, why = NULL, polled_at = clock_timestamp(),
        waits_in = in_tiers,
        -- One that lost its pod begins to wait now.
        asked_at = CASE WHEN a.pod IS NULL AND a.ended_at IS NULL THEN a.asked_at ELSE clock_timestamp() END
    WHERE a.id = mine.id RETURNING a.* INTO mine;
    SELECT coalesce(array_agg(w.waits_in::text ORDER BY w.asked_at, w.id), '{}') INTO waits FROM allocations AS w
    WHERE w.ended_at IS NULL AND w.pod IS NULL AND w.call IS NOT NULL AND w.id <> mine.id
      AND (w.asked_at, w.id) < (mine.asked_at, mine.id)
      AND w.asked_at > clock_timestamp() - interval '1 hour'
      AND w.polled_at > clock_timestamp() - make_interval(secs => in_silence_s)
      AND w.waits_in && in_tiers;
    before_me := cardinality(waits);
    is_served := array_fill(false, ARRAY[before_me]);
    looked_at := array_fill(0, ARRAY[cardinality(in_tiers)]);
    -- What was proposed first. Only if that is another's by now are all pods looked at.
    FOREACH is_pick IN ARRAY ARRAY[false, true] LOOP
        FOR place IN
            (SELECT p.name, in_slot AS slot, p.incarnation, p.tier, p.base_url
             FROM pods AS p
             WHERE NOT is_pick AND p.name = in_pod AND p.incarnation = in_incarnation AND in_slot <= p.calls_max AND pod_takes(p, false)
               AND (p.hanging = '{}' OR pod_slot_fits(p.name, p.calls_max, p.hanging, in_slot))
               -- Heartbeats are written within a second: one of before the loss may still be on its way.
               AND (p.name = ANY(mine.lost_pods) AND p.heard_at < mine.lost_at + interval '2 seconds') IS NOT TRUE)
            UNION ALL
            (SELECT f.name, f.slot, f.incarnation, f.tier, f.base_url
             FROM free_pod_slots AS f
             WHERE is_pick AND f.tier = ANY(in_tiers)
               AND (f.name = ANY(mine.lost_pods) AND f.heard_at < mine.lost_at + interval '2 seconds') IS NOT TRUE
             -- Pods often die together. A call that lost its agent goes where somebody was heard last, never to a pod that should
             -- have been heard since, and one that lost its second only to one that was: of 30 live pods one speaks every 0.2 s.
             -- For pods that speak rarely nobody waits longer than two seconds, and who cannot wait takes what there is.
               AND (mine.turn = 0 OR in_wait_max_s = 0 OR f.heard_at > mine.lost_at
                    OR (clock_timestamp() < mine.lost_at + make_interval(secs => f.interval_s + 1)
                        AND (mine.turn < 2
                             OR (f.interval_s > 8 AND mine.asked_at < clock_timestamp() - interval '2 seconds')))) IS NOT FALSE
             ORDER BY f.is_silent OR f.missed >= 2, f.is_overdue, array_position(in_tiers, f.tier),
                      CASE WHEN mine.turn > 0 THEN f.heard_at END DESC NULLS LAST, f.slot, random()
             LIMIT before_me + 8)
        LOOP
            IF is_pick AND before_me > 0 THEN
                at := array_position(in_tiers, place.tier);
                LOOP
                    looked_at[at] := looked_at[at] + 1;
                    EXIT WHEN looked_at[at] > before_me
                           OR (NOT is_served[looked_at[at]] AND place.tier = ANY(waits[looked_at[at]]::text[]));
                END LOOP;
                IF looked_at[at] <= before_me THEN
                    is_served[looked_at[at]] := true;
                    CONTINUE;
                END IF;
            END IF;
            BEGIN
                UPDATE allocations AS a
                SET pod = place.name, slot = place.slot, incarnation = place.incarnation, begun_at = coalesce(a.begun_at, clock_timestamp()),
                    source_pool = CASE WHEN place.tier LIKE 'merchant:%' THEN place.tier ELSE 'pool:' || place.tier END
                WHERE a.id = mine.id RETURNING a.* INTO mine;
                RETURN QUERY SELECT 'pod', mine.id, mine.pod, mine.slot, mine.incarnation, mine.source_pool, place.base_url,
                                    mine.turn, false, 0;
                RETURN;
            EXCEPTION WHEN unique_violation THEN
                NULL;  -- somebody was faster: the next one
            END;
        END LOOP;
    END LOOP;
    IF mine.asked_at + make_interval(secs => in_wait_max_s) <= clock_timestamp() THEN
        -- Who does not wait, or has waited long enough, leaves no live row. Asked again, it may have more luck; not one that
        -- had a pod and lost it: what became of that call is known by its row.
        IF mine.begun_at IS NULL THEN
            DELETE FROM allocations AS a WHERE a.id = mine.id;
        ELSE
            UPDATE allocations AS a SET ended_at = clock_timestamp(), why = 'no_agent' WHERE a.id = mine.id;
        END IF;
        before_me := -1;
    END IF;
    RETURN QUERY SELECT CASE WHEN before_me >= 0 THEN 'waits' ELSE 'none' END, mine.id, NULL::text, NULL::int, NULL::bigint, '', '',
                        mine.turn, false, greatest(before_me, 0);
END $$;
