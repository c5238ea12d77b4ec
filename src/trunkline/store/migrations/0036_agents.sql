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
    -- It is about to change its tier or its maximum: an intent in flight cannot be seen, so it takes nothing for 2 s before.
    changing_since  timestamptz,
    registered_at   timestamptz NOT NULL DEFAULT clock_timestamp()
    -- Heartbeats change no indexed column, so they stay on their page.
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX pods_by_incarnation ON pods (incarnation);
CREATE INDEX pods_by_tier ON pods (tier);

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
    asked_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
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
CREATE FUNCTION pod_takes(p pods, for_dials boolean) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT p.is_ready AND p.changing_since IS NULL
       AND (p.leaving_since IS NULL)
       AND (p.draining_until IS NULL OR p.draining_until <= clock_timestamp())
       AND (NOT for_dials OR NOT pod_is_silent(p))
       AND NOT EXISTS (SELECT FROM unnest(p.named) AS said (call)
                       WHERE NOT EXISTS (SELECT FROM allocations AS a
                                         WHERE a.call = said.call AND a.pod = p.name AND a.ended_at IS NULL))
       AND NOT EXISTS (SELECT FROM allocations AS a
                       WHERE a.pod = p.name AND a.slot > p.calls_max AND a.ended_at IS NULL)
$$;
