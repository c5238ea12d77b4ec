-- Handlers that do not end take up their pods, and Postgres knows it.

ALTER TABLE pods
    -- Calls that are over and whose handlers do not end, as its last heartbeat said: it takes so many calls fewer.
    ADD COLUMN hanging text[] NOT NULL DEFAULT '{}';

-- Whether a pod of which handlers hang has room on this slot. Only its lowest free slots are given, as many as it has room for: the
-- calls above a slot count with those that hang. So two who pick at once, and see the same, meet on the unique index of slots
-- instead of giving the pod one call too many. Where nothing hangs nobody has to ask.
CREATE FUNCTION pod_slot_fits(in_pod text, in_calls_max int, in_hanging text[], in_slot int)
RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT in_slot + cardinality(in_hanging)
           + (SELECT count(*) FROM allocations AS l WHERE l.pod = in_pod AND l.slot > in_slot AND l.ended_at IS NULL) <= in_calls_max
$$;

-- As before (0036), but that a pod of which handlers hang takes a call only if it has room for it.
CREATE OR REPLACE FUNCTION pod_takes(p pods, for_dials boolean) RETURNS boolean LANGUAGE sql STABLE AS $$
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

CREATE OR REPLACE VIEW present_pods AS
SELECT p.name, p.incarnation, p.tier, p.base_url, p.calls_max, p.heard_at, p.interval_s, p.named, p.missed, p.missed_at,
       p.sequence > 0 AND greatest(p.heard_at, h.since) < clock_timestamp() - make_interval(secs => p.interval_s + 2) AS is_overdue,
       p.sequence > 0 AND greatest(p.heard_at, h.since)
           < clock_timestamp() - make_interval(secs => greatest(15, 3 * p.interval_s)) AS is_silent,
       p.hanging
FROM pods AS p CROSS JOIN pod_hearing AS h
WHERE p.is_ready AND p.changing_since IS NULL AND p.leaving_since IS NULL
  AND (p.draining_until IS NULL OR p.draining_until <= clock_timestamp());

CREATE OR REPLACE VIEW free_pod_slots AS
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

-- As before (0047), but that a slot of a pod of which handlers hang has to fit.
CREATE OR REPLACE FUNCTION allocate_new_calls(
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
          AND (p.hanging = '{}' OR pod_slot_fits(p.name, p.calls_max, p.hanging, w.slot))
        ORDER BY w.call
        ON CONFLICT DO NOTHING
        RETURNING a.id, a.pod, a.source_pool
    )
    SELECT g.id, g.source_pool, p.base_url FROM given AS g JOIN pods AS p ON p.name = g.pod;
END $$;
