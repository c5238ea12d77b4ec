-- The answer of a call whose agent was kept with its dial: gate and allocation in one compare-and-set. Whoever ends, gives up
-- or cancels the attempt ends its row in the same transaction, so a live row means that the attempt is current. A row of an
-- older incarnation counts as lost. $1 attempt  $2 the carrier's call id
UPDATE allocations AS a
SET call = $2, begun_at = coalesce(a.begun_at, clock_timestamp())
FROM pods AS p
WHERE a.id = $1 AND a.ended_at IS NULL AND (a.call IS NULL OR a.call = $2)
  AND p.name = a.pod AND p.incarnation = a.incarnation
RETURNING a.id, a.pod, a.slot, a.incarnation, a.source_pool, p.base_url, a.turn, a.merchant_id
