-- The tier that a pod had.
SELECT tier FROM router_pods WHERE name = $1
