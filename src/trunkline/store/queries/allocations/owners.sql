-- Who has these slots, to tell Valkey, which proposed them as free.
SELECT a.id, a.pod, a.slot
FROM unnest($1::text[], $2::int[]) AS w (pod, slot)
JOIN allocations AS a ON a.pod = w.pod AND a.slot = w.slot AND a.ended_at IS NULL
