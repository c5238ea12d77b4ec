-- Pods are written by their heartbeats from now on, so Valkey may be lost at any moment without losing one.

ALTER TABLE pods
    -- The uid of the one before: the cluster's word of it may come after the first heartbeat of its successor.
    ADD COLUMN past_uid text NOT NULL DEFAULT '',
    -- Calls that an operator took away from it. It may go on naming them: its agent hangs.
    ADD COLUMN reset_calls text[] NOT NULL DEFAULT '{}',
    ALTER COLUMN interval_s SET DEFAULT 30;

-- When a version of the agents was first seen. New calls prefer the newest, which is not that of the pod that booted last:
-- an old pod that restarts does not make its version new.
CREATE TABLE pod_versions (
    version      text PRIMARY KEY,
    appeared_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Not heard for three of its own intervals, never less than 15 s, while we could hear. One that never spoke (the cluster
-- alone knows it) is not silent. A clock that was set back makes nobody silent, and nobody heard for longer than it was.
CREATE OR REPLACE FUNCTION pod_is_silent(p pods) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT p.sequence > 0
       AND p.heard_at < clock_timestamp() - make_interval(secs => greatest(15, 3 * p.interval_s))
       AND (SELECT h.since FROM pod_hearing AS h) < clock_timestamp() - make_interval(secs => greatest(15, 3 * p.interval_s))
$$;

-- Both are in the tables above now. What was live when this ran is told by the pods' own heartbeats, or by the carriers.
DROP TABLE router_pods;
DROP TABLE router_allocations;
