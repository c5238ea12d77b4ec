-- Whether this installation ever gave a call a pod, or knew a pod at all.
SELECT EXISTS (SELECT FROM router_pods) OR EXISTS (SELECT FROM router_allocations)
