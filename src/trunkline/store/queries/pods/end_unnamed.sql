-- The allocation of a call that never came: it ends if its carrier says that the call is over ($2), else it loses its pod and
-- may have another. Only this one, and only while its pod has not named it: since the carrier was asked it may have come.
UPDATE allocations AS a
SET ended_at = CASE WHEN $2 THEN clock_timestamp() END, why = CASE WHEN $2 THEN 'never came' END,
    pod = CASE WHEN $2 THEN a.pod END, slot = CASE WHEN $2 THEN a.slot END, incarnation = CASE WHEN $2 THEN a.incarnation END
WHERE a.id = $1 AND a.pod = $3 AND a.ended_at IS NULL AND a.joined_at IS NULL
  AND NOT EXISTS (SELECT FROM pods AS p WHERE p.name = a.pod AND a.call = ANY(p.named))
RETURNING a.id
