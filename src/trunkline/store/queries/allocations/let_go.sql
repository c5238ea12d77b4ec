-- A pod that lets go of a call itself names it no more: it is free before its next heartbeat says so.
-- $1 pod  $2 call
UPDATE pods SET named = array_remove(named, $2) WHERE name = $1 AND $2 = ANY(named)
