-- Pods that are about to change their tier or their maximum take nothing from now on; others that were, take calls again.
WITH locked AS MATERIALIZED (
    SELECT name FROM pods WHERE (name = ANY($1::text[])) <> (changing_since IS NOT NULL) ORDER BY name FOR NO KEY UPDATE
)
UPDATE pods AS p SET changing_since = CASE WHEN p.name = ANY($1::text[]) THEN clock_timestamp() END
FROM locked AS l WHERE p.name = l.name
RETURNING p.name
