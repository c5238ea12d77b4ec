-- Pods that are gone for good: one that comes back under the same name gets a tier as a new one does.
DELETE FROM router_pods WHERE name = ANY($1::text[])
