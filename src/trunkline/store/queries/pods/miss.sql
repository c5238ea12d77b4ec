-- A call was given to this pod and did not reach its agent.
UPDATE pods SET missed = least(missed + 1, 1000), missed_at = clock_timestamp() WHERE name = $1
