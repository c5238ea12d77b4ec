-- The last state that the agent of a call stored. An agent that lost the call to another one stores nothing: it would undo
-- what the other one has. $1 attempt  $2 its turn  $3 the state
INSERT INTO call_states AS c (attempt_id, turn, state)
SELECT a.id, $2, $3
FROM attempts AS a
WHERE a.id = $1 AND NOT EXISTS (SELECT FROM allocations AS l WHERE l.id = a.id AND l.turn > $2)
ON CONFLICT (attempt_id) DO UPDATE
SET turn = excluded.turn, state = excluded.state, saved_at = clock_timestamp()
WHERE c.turn <= excluded.turn
RETURNING attempt_id
