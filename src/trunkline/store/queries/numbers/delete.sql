-- Remove a number. The caller has locked it and found no call on it.
DELETE FROM numbers WHERE id = $1
