-- Allocations that were given while Postgres was silent, as Valkey or the answer URL named them. What Postgres knows by now
-- wins: a row that has ended stays so, and one that has a pod keeps it.
-- $1 id  $2 has an attempt  $3 call  $4 merchant  $5 pod  $6 slot  $7 incarnation  $8 source pool
INSERT INTO allocations AS a (id, has_attempt, call, merchant_id, pod, slot, incarnation, source_pool, begun_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, clock_timestamp())
ON CONFLICT (id) DO UPDATE
SET call = coalesce(a.call, excluded.call), begun_at = coalesce(a.begun_at, excluded.begun_at)
WHERE a.ended_at IS NULL
