-- Pods that are gone for good: one that comes back under the same name gets a tier as a new one does.
WITH gone AS (DELETE FROM pods WHERE name = ANY($1::text[]))
DELETE FROM router_pods WHERE name = ANY($1::text[])
