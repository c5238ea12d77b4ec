-- Calls that their pods name for the first time: an agent has taken their stream. In the order of ids.
-- $1 pods  $2 calls
WITH here AS MATERIALIZED (
    SELECT a.id FROM unnest($1::text[], $2::text[]) AS s (pod, call)
    JOIN allocations AS a ON a.call = s.call AND a.pod = s.pod
    WHERE a.ended_at IS NULL AND a.joined_at IS NULL
    ORDER BY a.id FOR NO KEY UPDATE OF a
)
UPDATE allocations AS a SET joined_at = clock_timestamp() FROM here AS h WHERE a.id = h.id
