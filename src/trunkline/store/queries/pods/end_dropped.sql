-- Calls that their pods named and name no more, of users of the router who have no attempt here: their release was lost on
-- the way. The end of an attempt's call is told by its carrier: its agent may only have lost the stream.
-- $1 pods  $2 calls
WITH over AS MATERIALIZED (
    SELECT a.id FROM unnest($1::text[], $2::text[]) AS s (pod, call)
    JOIN allocations AS a ON a.call = s.call AND a.pod = s.pod
    WHERE a.ended_at IS NULL AND NOT a.has_attempt
    ORDER BY a.id FOR NO KEY UPDATE OF a
)
UPDATE allocations AS a SET ended_at = clock_timestamp(), why = 'dropped' FROM over AS o WHERE a.id = o.id RETURNING a.id
