-- An operator frees a pod: the calls that it names count for nothing until it lets go of them.
-- Returns the calls that its last heartbeat named.
UPDATE pods AS p
SET reset_calls = ARRAY(SELECT DISTINCT said FROM unnest(p.reset_calls || p.named) AS said), named = '{}'
FROM (SELECT name, named FROM pods WHERE name = $1 FOR NO KEY UPDATE) AS before
WHERE p.name = before.name
RETURNING before.named
