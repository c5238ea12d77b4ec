-- The tier of each pod.
SELECT name, tier FROM router_pods ORDER BY name
