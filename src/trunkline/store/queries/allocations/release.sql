-- The end of a call's allocation. $2: the pod that lets go, '' when the platform or an operator releases. $3: the turn of who
-- lets go, NULL for any: an agent that lost the call to another one ends nothing. A call that has no row leaves a tombstone
-- too ($5 is its id), so that an answer webhook that comes after the end gets a hang-up and not a pod.
WITH over AS (
    UPDATE allocations AS a SET ended_at = clock_timestamp(), why = $4
    WHERE a.call = $1 AND a.ended_at IS NULL AND ($2 = '' OR a.pod = $2) AND ($3::smallint IS NULL OR a.turn = $3)
    RETURNING a.id, a.pod, a.slot, a.incarnation, a.source_pool
), buried AS (
    INSERT INTO allocations (id, has_attempt, call, begun_at, ended_at, why)
    SELECT $5::uuid, false, $1, clock_timestamp(), clock_timestamp(), $4
    WHERE $2 = '' AND NOT EXISTS (SELECT FROM over)
    ON CONFLICT DO NOTHING
)
SELECT id, pod, slot, incarnation, source_pool FROM over
