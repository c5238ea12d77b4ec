-- Agents: the pods that take calls, and which call has which of their slots. Postgres is the truth of both; Valkey proposes
-- a slot and may be wrong, the unique indexes below decide.

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
    sequence        bigint NOT NULL DEFAULT 0,
    -- The calls that its last heartbeat named.
    named           text[] NOT NULL DEFAULT '{}',
    interval_s      real NOT NULL DEFAULT 5,
    heard_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    is_ready        boolean NOT NULL DEFAULT true,
    draining_until  timestamptz,
    leaving_since   timestamptz,
    -- Calls in a row that did not reach its agent. A heartbeat that names a call ends the row.
    missed          smallint NOT NULL DEFAULT 0,
    missed_at       timestamptz,
    -- It is about to change its tier or its maximum: an intent in flight cannot be seen, so it takes nothing for 2 s before.
    changing_since  timestamptz,
    registered_at   timestamptz NOT NULL DEFAULT clock_timestamp()
    -- Heartbeats change no indexed column, so they stay on their page.
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX pods_by_incarnation ON pods (incarnation);
CREATE INDEX pods_by_tier ON pods (tier);

-- Whose agents talk: ours, for which a slot is kept before anybody is dialled, or somebody else's. Only the platform or the
-- reseller may say that they are elsewhere.
ALTER TABLE merchants ADD COLUMN agents text NOT NULL DEFAULT 'ours' CHECK (agents IN ('ours', 'elsewhere'));
ALTER TABLE pools ADD COLUMN agents text NOT NULL DEFAULT 'ours' CHECK (agents IN ('ours', 'elsewhere'));

-- Since when heartbeats could be heard without a gap: a pod is silent only if it was so for that long. One row.
CREATE TABLE pod_hearing (
    is_only  boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    since    timestamptz NOT NULL DEFAULT clock_timestamp(),
    ran_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO pod_hearing DEFAULT VALUES;

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

-- Not heard for three of its own intervals, never less than 15 s, while we could hear.
CREATE FUNCTION pod_is_silent(p pods) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT p.heard_at < clock_timestamp() - make_interval(secs => greatest(15, 3 * p.interval_s))
       AND (SELECT h.since FROM pod_hearing AS h) < clock_timestamp() - make_interval(secs => greatest(15, 3 * p.interval_s))
$$;

-- Whether a pod may take a call. `for_dials`: one that will be answered in half a minute, so it must be there then: a pod
-- that has not been heard for three of its own intervals (never less than 15 s, and only time in which we could hear) is not.
-- A pod that names a call which no live row gives it is busy with it; one with a call above its maximum takes none, or
-- an exclusive pod would get a second one on slot 1.
-- A pod at which two calls in a row did not reach the agent gets one at a time until one does, and is kept for a dial every
-- 30 s at most: it would otherwise be the least loaded one, and whoever answers would first wait for a stream that fails.
CREATE FUNCTION pod_takes(p pods, for_dials boolean) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT p.is_ready AND p.changing_since IS NULL
       AND (p.leaving_since IS NULL)
       AND (p.draining_until IS NULL OR p.draining_until <= clock_timestamp())
       AND (NOT for_dials OR NOT pod_is_silent(p))
       AND (p.missed < 2
            OR ((NOT for_dials OR p.missed_at <= clock_timestamp() - interval '30 seconds')
                AND NOT EXISTS (SELECT FROM allocations AS a WHERE a.pod = p.name AND a.ended_at IS NULL)))
       AND NOT EXISTS (SELECT FROM unnest(p.named) AS said (call)
                       WHERE NOT EXISTS (SELECT FROM allocations AS a
                                         WHERE a.call = said.call AND a.pod = p.name AND a.ended_at IS NULL))
       AND NOT EXISTS (SELECT FROM allocations AS a
                       WHERE a.pod = p.name AND a.slot > p.calls_max AND a.ended_at IS NULL)
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
    before_me int := 0;
    is_pick boolean;
BEGIN
    -- For this transaction: a setting of the function would end before the commit.
    PERFORM set_config('synchronous_commit', 'off', true);
    IF in_attempt IS NOT NULL THEN
        SELECT a.state, a.hang_up_at IS NOT NULL AS is_unwanted,
               a.lead_id IS NOT NULL AND EXISTS (SELECT FROM attempts AS n
                                                 WHERE n.lead_id = a.lead_id AND n.intent_at > a.intent_at) AS is_old
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
        -- One that lost its pod begins to wait now.
        asked_at = CASE WHEN a.pod IS NULL AND a.ended_at IS NULL THEN a.asked_at ELSE clock_timestamp() END
    WHERE a.id = mine.id RETURNING a.* INTO mine;
    SELECT count(*) INTO before_me FROM allocations AS w
    WHERE w.ended_at IS NULL AND w.pod IS NULL AND w.call IS NOT NULL AND w.id <> mine.id
      AND (w.asked_at, w.id) < (mine.asked_at, mine.id)
      AND w.asked_at > clock_timestamp() - interval '1 hour'
      AND w.polled_at > clock_timestamp() - make_interval(secs => in_silence_s);
    -- What was proposed first. Only if that is another's by now are all pods looked at.
    FOREACH is_pick IN ARRAY ARRAY[false, true] LOOP
        FOR place IN
            (SELECT p.name, in_slot AS slot, p.incarnation, p.tier, p.base_url
             FROM pods AS p
             WHERE NOT is_pick AND p.name = in_pod AND p.incarnation = in_incarnation AND in_slot <= p.calls_max AND pod_takes(p, false)
               -- Heartbeats are written within a second: one of before the loss may still be on its way.
               AND (p.name = ANY(mine.lost_pods) AND p.heard_at < mine.lost_at + interval '2 seconds') IS NOT TRUE)
            UNION ALL
            (SELECT f.name, f.slot, f.incarnation, f.tier, f.base_url
             FROM (SELECT p.name, s.slot, p.incarnation, p.tier, p.base_url,
                          array_position(in_tiers, p.tier) AS rank, pod_is_silent(p) OR p.missed >= 2 AS is_last_resort, p.heard_at
                   FROM pods AS p CROSS JOIN LATERAL generate_series(1, p.calls_max) AS s (slot)
                   WHERE is_pick AND p.tier = ANY(in_tiers) AND pod_takes(p, false)
                     AND (p.name = ANY(mine.lost_pods) AND p.heard_at < mine.lost_at + interval '2 seconds') IS NOT TRUE
                     AND NOT EXISTS (SELECT FROM allocations AS l
                                     WHERE l.pod = p.name AND l.slot = s.slot AND l.ended_at IS NULL)) AS f
             -- A call that lost its agent goes where somebody was heard since: pods often die together.
             ORDER BY f.is_last_resort, f.rank, coalesce(mine.turn > 0 AND f.heard_at > mine.lost_at, false) DESC, f.slot, random()
             OFFSET before_me LIMIT 8)
        LOOP
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
