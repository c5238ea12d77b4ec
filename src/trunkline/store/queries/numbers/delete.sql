-- Remove a number, and what was decided about calls that come in on it. The caller has locked it and found no call on it.
WITH forgotten AS (DELETE FROM inbound_policies WHERE number_id = $1)
DELETE FROM numbers WHERE id = $1
