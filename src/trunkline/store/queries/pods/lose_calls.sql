-- What earlier incarnations of a pod had: calls that the new process names are its own, the others lose their pod and keep
-- their row, for they may have another. Locked in the order of ids, as everywhere.
-- $1 pod  $2 rows of incarnations before this one  $3 calls that the new one names
WITH theirs AS MATERIALIZED (
    SELECT a.id, coalesce(a.call = ANY($3::text[]), false) AS stays
    FROM allocations AS a
    WHERE a.pod = $1 AND a.ended_at IS NULL AND a.incarnation < $2
    ORDER BY a.id FOR NO KEY UPDATE
)
UPDATE allocations AS a
SET pod = CASE WHEN t.stays THEN a.pod END, slot = CASE WHEN t.stays THEN a.slot END,
    incarnation = CASE WHEN t.stays THEN $2::bigint END
FROM theirs AS t WHERE a.id = t.id
RETURNING a.id, a.call, t.stays
