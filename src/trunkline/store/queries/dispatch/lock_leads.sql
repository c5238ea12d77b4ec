-- First step of the intent: lock, in id order, the leads that are still as the grants say and whose due time has passed.
-- Locking by SELECT before the UPDATE is what keeps two dialers from deadlocking; a lead that was edited, aborted or
-- dialled meanwhile has another version or status and is not returned.
SELECT l.id, l.phone, l.merchant_id, l.reseller_id, l.attempt_count, l.due_at
FROM leads AS l
JOIN unnest($1::uuid[], $2::int[]) AS wanted (id, version) ON wanted.id = l.id
WHERE l.status = 'BACKLOG' AND l.version = wanted.version AND l.due_at <= clock_timestamp()
ORDER BY l.id
FOR NO KEY UPDATE OF l
