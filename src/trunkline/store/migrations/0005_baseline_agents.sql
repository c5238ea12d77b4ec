-- Agents: the pods that take calls, and which call has which of their slots. Postgres is the truth of both, and pods are written by
-- their heartbeats, so Valkey may be lost at any moment without losing one. It proposes a slot and may be wrong; the unique indexes
-- below decide.

-- Every registration of a pod gets a number. What an earlier process of the same name said, was given or signed carries an
-- older number and counts for nothing. Boot ids cannot do this: they have no order.
CREATE SEQUENCE pod_incarnations;

CREATE TABLE pods (
    name            text PRIMARY KEY,
    incarnation     bigint NOT NULL DEFAULT nextval('pod_incarnations'),
    tier            text NOT NULL,
    -- Calls that it may have at once: 1 in an exclusive tier.
    calls_max       int NOT NULL DEFAULT 1 CHECK (calls_max >= 1),
    base_url        text NOT NULL DEFAULT '',
    ip              text NOT NULL DEFAULT '',
    port            int NOT NULL DEFAULT 0,
    version         text NOT NULL DEFAULT '',
    boot_id         text NOT NULL DEFAULT '',
    -- Boot ids of processes before this one, the newest last. One of them speaking again is late, or a second cluster.
    past_boots      text[] NOT NULL DEFAULT '{}',
    uid             text NOT NULL DEFAULT '',
    -- The uid of the one before: the cluster's word of it may come after the first heartbeat of its successor.
    past_uid        text NOT NULL DEFAULT '',
    sequence        bigint NOT NULL DEFAULT 0,
    -- The calls that its last heartbeat named.
    named           text[] NOT NULL DEFAULT '{}',
    -- It has named a call at least once. Of such a pod a call that it never named did not reach its agent; of one that names none
    -- (the agents of the router's guide) nothing follows.
    names_calls     boolean NOT NULL DEFAULT false,
    -- Calls that are over and whose handlers do not end, as its last heartbeat said: it takes so many calls fewer.
    hanging         text[] NOT NULL DEFAULT '{}',
    -- Calls that an operator took away from it. It may go on naming them: its agent hangs.
    reset_calls     text[] NOT NULL DEFAULT '{}',
    interval_s      real NOT NULL DEFAULT 30,
    heard_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    is_ready        boolean NOT NULL DEFAULT true,
    draining_until  timestamptz,
    leaving_since   timestamptz,
    -- Calls in a row that did not reach its agent. A heartbeat that names a call ends the row.
    missed          smallint NOT NULL DEFAULT 0,
    missed_at       timestamptz,
    -- It is about to change its tier or its maximum: an intent in flight cannot be seen, so it takes nothing for 2 s before.
    changing_since  timestamptz,
    -- The transaction that last gave the pod a number or an address. Whoever read before it was committed saw it running: it
    -- is not below that snapshot's oldest running transaction.
    addressed_xid   xid8 NOT NULL DEFAULT pg_current_xact_id(),
    registered_at   timestamptz NOT NULL DEFAULT clock_timestamp()
    -- Heartbeats change no indexed column, so they stay on their page.
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX pods_by_incarnation ON pods (incarnation);
CREATE INDEX pods_by_tier ON pods (tier);
CREATE INDEX pods_by_addressed_xid ON pods (addressed_xid);

-- Which addresses of pods changed since somebody last looked. Incarnations do not say it: of two that are given at once the lower one
-- may be committed later, and a heartbeat may change the address of a process that is known already.
-- Here and not in the statements, of which five change an address: none of them can forget it. Heartbeats that change nothing of
-- it do not come here, and stay on their page.
CREATE FUNCTION pods_note_address() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.addressed_xid := pg_current_xact_id();
    RETURN NEW;
END $$;
CREATE TRIGGER pods_note_address BEFORE UPDATE ON pods FOR EACH ROW
    WHEN ((OLD.incarnation, OLD.base_url, OLD.ip, OLD.port) IS DISTINCT FROM (NEW.incarnation, NEW.base_url, NEW.ip, NEW.port))
    EXECUTE FUNCTION pods_note_address();

-- When a version of the agents was first seen. New calls prefer the newest, which is not that of the pod that booted last:
-- an old pod that restarts does not make its version new.
CREATE TABLE pod_versions (
    version      text PRIMARY KEY,
    appeared_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Since when heartbeats could be heard without a gap: a pod is silent only if it was so for that long. One row.
CREATE TABLE pod_hearing (
    is_only  boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    since    timestamptz NOT NULL DEFAULT clock_timestamp(),
    ran_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO pod_hearing DEFAULT VALUES;

-- As it stands in `voice:merchant:config`: text, since what an operator wrote by hand is kept as it was written.
CREATE TABLE router_merchants (
    merchant_id  text PRIMARY KEY CHECK (length(merchant_id) BETWEEN 1 AND 256),
    config       text NOT NULL CHECK (length(config) BETWEEN 1 AND 4096),
    changed_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- One row per call, or per dial that keeps an agent for its call. Its id is the attempt's where there is one.
CREATE TABLE allocations (
    id           uuid PRIMARY KEY,
    has_attempt  boolean NOT NULL,
    -- The carrier's id. Unknown until the call is answered.
    call         text,
    merchant_id  text NOT NULL DEFAULT '',
    -- All three or none: a live row without a pod waits for one, or lost it and may have another.
    pod          text,
    slot         int CHECK (slot >= 1),
    incarnation  bigint,
    source_pool  text NOT NULL DEFAULT '',
    -- How often the call was given another pod: tokens, releases and reports of an earlier turn end nothing.
    turn         smallint NOT NULL DEFAULT 0,
    -- Where its agents were lost, and when the last one was. Those pods get the call again only once they were heard since.
    lost_pods    text[] NOT NULL DEFAULT '{}',
    lost_at      timestamptz,
    -- The tiers in which a call without a pod looks for one. Dials leave those to it; they go on in all others.
    waits_in     text[] NOT NULL DEFAULT '{}',
    asked_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- When it last asked. Who waits for a pod asks again every second or so, and has hung up when it does not.
    polled_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    begun_at     timestamptz,
    -- An agent has taken the stream: it named the call, read its context or reported on it.
    joined_at    timestamptz,
    ended_at     timestamptz,
    why          text,
    CHECK ((pod IS NULL) = (slot IS NULL) AND (pod IS NULL) = (incarnation IS NULL))
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX allocations_one_per_slot ON allocations (pod, slot) WHERE ended_at IS NULL AND pod IS NOT NULL;
-- Ended ones too: an index over live rows alone would let an ended call in again. The ended row is the tombstone.
CREATE UNIQUE INDEX allocations_one_per_call ON allocations (call) WHERE call IS NOT NULL;
CREATE INDEX allocations_waiting ON allocations (asked_at) WHERE ended_at IS NULL AND pod IS NULL;
CREATE INDEX allocations_ended ON allocations (ended_at) WHERE ended_at IS NOT NULL;

-- Whoever ends, gives up or cancels an attempt ends the slot that is kept for it, in the same statement: a kept row means
-- that the attempt is current. A call that surfaces after it was given up gets its row back, without a pod.
-- Once per statement, in the order of ids: others that end several rows lock them in the same order.
CREATE FUNCTION attempts_end_allocations() RETURNS trigger LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    PERFORM FROM after AS n
    JOIN before AS o ON o.id = n.id
    WHERE n.state IS DISTINCT FROM o.state OR (n.hang_up_at IS NULL) IS DISTINCT FROM (o.hang_up_at IS NULL)
    LIMIT 1;
    IF NOT FOUND THEN RETURN NULL; END IF;
    WITH over AS MATERIALIZED (
        SELECT a.id, CASE WHEN n.state IN ('ended', 'rejected', 'absent', 'unknown') THEN n.state ELSE 'cancelled' END AS why
        FROM after AS n
        JOIN before AS o ON o.id = n.id
        JOIN allocations AS a ON a.id = n.id
        WHERE a.ended_at IS NULL
          AND (n.state IN ('ended', 'rejected', 'absent', 'unknown')
               OR (n.hang_up_at IS NOT NULL AND o.hang_up_at IS NULL AND a.begun_at IS NULL))
        ORDER BY a.id
        FOR NO KEY UPDATE OF a
    )
    UPDATE allocations AS a SET ended_at = clock_timestamp(), why = over.why FROM over WHERE a.id = over.id;
    UPDATE allocations AS a
    SET ended_at = NULL, why = NULL, pod = NULL, slot = NULL, incarnation = NULL
    FROM after AS n JOIN before AS o ON o.id = n.id
    WHERE a.id = n.id AND a.ended_at IS NOT NULL AND o.state IN ('absent', 'unknown')
      AND n.state IN ('accepted', 'ringing', 'answered');
    RETURN NULL;
END $$;
CREATE TRIGGER attempts_end_allocations AFTER UPDATE ON attempts
    REFERENCING OLD TABLE AS before NEW TABLE AS after
    FOR EACH STATEMENT EXECUTE FUNCTION attempts_end_allocations();

-- Not heard for three of its own intervals, never less than 15 s, while we could hear. One that never spoke (the cluster
-- alone knows it) is not silent. A clock that was set back makes nobody silent, and nobody heard for longer than it was.
CREATE FUNCTION pod_is_silent(p pods) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT p.sequence > 0
       AND p.heard_at < clock_timestamp() - make_interval(secs => greatest(15, 3 * p.interval_s))
       AND (SELECT h.since FROM pod_hearing AS h) < clock_timestamp() - make_interval(secs => greatest(15, 3 * p.interval_s))
$$;

-- Whether a pod of which handlers hang has room on this slot. Only its lowest free slots are given, as many as it has room for: the
-- calls above a slot count with those that hang. So two who pick at once, and see the same, meet on the unique index of slots
-- instead of giving the pod one call too many. Where nothing hangs nobody has to ask.
CREATE FUNCTION pod_slot_fits(in_pod text, in_calls_max int, in_hanging text[], in_slot int)
RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT in_slot + cardinality(in_hanging)
           + (SELECT count(*) FROM allocations AS l WHERE l.pod = in_pod AND l.slot > in_slot AND l.ended_at IS NULL) <= in_calls_max
$$;

-- Whether a pod may take a call. `for_dials`: one that will be answered in half a minute, so it must be there then: a pod
-- that has not been heard for three of its own intervals (never less than 15 s, and only time in which we could hear) is not.
-- A pod that names a call which no live row gives it is busy with it; one with a call above its maximum takes none, or
-- an exclusive pod would get a second one on slot 1.
-- A pod at which two calls in a row did not reach the agent gets one at a time until one does, and is kept for a dial every
-- 30 s at most: it would otherwise be the least loaded one, and whoever answers would first wait for a stream that fails.
-- A pod of which handlers hang takes a call only if it has room for it.
CREATE FUNCTION pod_takes(p pods, for_dials boolean) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT p.is_ready AND p.changing_since IS NULL
       AND (p.leaving_since IS NULL)
       AND (p.draining_until IS NULL OR p.draining_until <= clock_timestamp())
       AND (NOT for_dials OR NOT pod_is_silent(p))
       AND (p.missed < 2
            OR ((NOT for_dials OR p.missed_at <= clock_timestamp() - interval '30 seconds')
                AND NOT EXISTS (SELECT FROM allocations AS a WHERE a.pod = p.name AND a.ended_at IS NULL)))
       AND (p.hanging = '{}'
            OR (SELECT count(*) FROM allocations AS a WHERE a.pod = p.name AND a.ended_at IS NULL) + cardinality(p.hanging) < p.calls_max)
       AND NOT EXISTS (SELECT FROM unnest(p.named) AS said (call)
                       WHERE NOT EXISTS (SELECT FROM allocations AS a
                                         WHERE a.call = said.call AND a.pod = p.name AND a.ended_at IS NULL))
       AND NOT EXISTS (SELECT FROM allocations AS a
                       WHERE a.pod = p.name AND a.slot > p.calls_max AND a.ended_at IS NULL)
$$;

-- Pods that are there. `is_silent`: not heard for three of its own intervals, as `pod_is_silent` says. `is_overdue`: its last
-- heartbeat is late.
CREATE VIEW present_pods AS
SELECT p.name, p.incarnation, p.tier, p.base_url, p.calls_max, p.heard_at, p.interval_s, p.named, p.missed, p.missed_at,
       p.sequence > 0 AND greatest(p.heard_at, h.since) < clock_timestamp() - make_interval(secs => p.interval_s + 2) AS is_overdue,
       p.sequence > 0 AND greatest(p.heard_at, h.since)
           < clock_timestamp() - make_interval(secs => greatest(15, 3 * p.interval_s)) AS is_silent,
       p.hanging
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
  AND (p.hanging = '{}' OR pod_slot_fits(p.name, p.calls_max, p.hanging, s.slot))
  AND (p.named = '{}'
       OR NOT EXISTS (SELECT FROM unnest(p.named) AS said (call)
                      WHERE NOT EXISTS (SELECT FROM allocations AS l
                                        WHERE l.call = said.call AND l.pod = p.name AND l.ended_at IS NULL)));

-- The tiers for whose pods somebody waits who is on the line. in_silence_s: who has not asked for so long has hung up.
CREATE FUNCTION waited_tiers(in_silence_s float8) RETURNS text[] LANGUAGE sql STABLE AS $$
    SELECT ARRAY(SELECT DISTINCT tier FROM allocations AS w CROSS JOIN LATERAL unnest(w.waits_in) AS tier
                 WHERE w.ended_at IS NULL AND w.pod IS NULL AND w.call IS NOT NULL
                   AND w.polled_at > clock_timestamp() - make_interval(secs => in_silence_s))
$$;

-- Gives an answered call its pod: one that was not kept with the dial (callers, overdialled calls, other users of the router),
-- or whose pod was lost while it rang. The call's own row goes in first, so that of several requests for one call one wins;
-- who won is read in a later statement, because a statement does not see what it waited for. One call per statement: rows
-- are found by two unique keys, which no batch could lock in one order. Nothing waits for the disk.
--
-- in_attempt: the attempt, or NULL for a call that no attempt is known of. It is locked FOR SHARE, so that a fold in flight is
-- waited for (FOR KEY SHARE does not help). in_pod, in_slot, in_incarnation: what Valkey proposes, or NULL.
-- in_tiers: where to look, in order. in_wait_max_s: so long it may wait for a pod, 0: not at all; waiters are served oldest
-- first. in_silence_s: a waiter that has not asked for so long has hung up.
-- result: pod, none, waits; ended, superseded, given_up (to be adopted first), taken (another call has this attempt)
--
-- Of those who wait: a free slot is left to the oldest of those before this call that waits in its tier and was not left one yet, and
-- is this call's if there is none. So each of them is left one slot at most, and none of a tier in which it does not look. Who came
-- before is looked through once per tier, however many slots are free; without waiters it costs nothing.
-- Of pods that were not heard although their interval has passed others are preferred: they may be dead, and look alive for two
-- intervals more.
CREATE FUNCTION allocate_call(
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

-- Gives new calls without an attempt the slots that Valkey proposes for them. Whoever is not in the answer asks `allocate_call`,
-- alone: the call is known already, the slot is another's, or the pod does not take it. In the order of calls, so that two
-- groups do not wait for each other on these; should they on slots, which Valkey proposes once, they do not wait long.
-- It spells out what `pod_takes` asks of a pod: as a function of its own, run for each call, that was 33 % of the time. A pod at
-- which calls did not reach the agent, or whose handlers hang, is rare and left to `allocate_call`. Rows are found by index whatever
-- the tables held when a session planned this: a plan made on an empty `allocations` read all of it for every group.
CREATE FUNCTION allocate_new_calls(
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

-- Ends the allocations of calls. in_pods: the pod that lets go, '' when the platform or an operator releases. in_turns: the turn
-- of who lets go, NULL for any: an agent that lost the call to another one ends nothing. A call that has no row leaves a
-- tombstone too (its id is in in_tombstones) if no pod says so, so that an answer webhook that comes after the end gets a
-- hang-up and not a pod. `no` is the place in the arrays, from 1; calls that had no live row are not in the answer.
-- A pod that lets go of a call names it no more: it is free before its next heartbeat says so. Pods are locked before
-- allocations, by name; allocations by id. A row that somebody else holds makes the others wait for 100 ms at most.
-- One statement ends all live rows of a group, locked by id; the others are looked at one by one.
CREATE FUNCTION release_calls(
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

-- The circuit breaker of a merchant whose people answer and find no agent. A row for every merchant that this happened to;
-- `stops_until` is set while it is tripped: until then nobody is dialled, afterwards one at a time until one has its agent.
CREATE TABLE no_agent_brakes (
    merchant_id  text PRIMARY KEY,
    -- Calls that ended before count no more.
    counts_from  timestamptz NOT NULL DEFAULT '-infinity',
    stops_until  timestamptz
);

-- The live calls of a merchant whose breaker is tripped: those since its dials were stopped, how many of these have their agent,
-- and all others. Through an index, however small the table was when it was planned: apart from the function below, which
-- becomes a part of whatever asks.
CREATE FUNCTION no_agent_probes(in_merchant text, in_since timestamptz, OUT calls int, OUT joined int, OUT others int)
LANGUAGE sql STABLE SET enable_seqscan = off SET enable_bitmapscan = off AS $$
    SELECT count(*) FILTER (WHERE a.intent_at > in_since AND a.state <> 'unknown'),
           count(l.joined_at) FILTER (WHERE a.intent_at > in_since),
           count(*) FILTER (WHERE a.intent_at <= in_since OR a.state = 'unknown')
    FROM attempts AS a
    LEFT JOIN allocations AS l ON l.id = a.id
    WHERE a.merchant_id = in_merchant AND a.direction = 'outbound' AND a.holds_channel
$$;

-- What a tripped breaker means for a merchant's next dial. No row: nothing. `opens_at`: not before then, because dials are
-- stopped, or because one of the calls since then is under way and has no agent yet. `live_max`: how many calls the
-- merchant may have with that dial, counted under its lock.
CREATE FUNCTION no_agent_brake(in_merchant text) RETURNS TABLE (opens_at timestamptz, live_max int)
LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT CASE WHEN b.stops_until > statement_timestamp() THEN b.stops_until
                WHEN probes.calls > 0 THEN statement_timestamp() + interval '1 second' END,
           1 + probes.others
    FROM no_agent_brakes AS b
    CROSS JOIN LATERAL no_agent_probes(b.merchant_id, b.stops_until) AS probes
    WHERE b.merchant_id = in_merchant AND b.stops_until IS NOT NULL AND probes.joined = 0
$$;
