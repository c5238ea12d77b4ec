-- Calls whose allocation ended within the life of a tombstone, and how many seconds are left of it. A call that has another
-- pod by now is not over.
SELECT e.call_sid, max(ceil($1 - extract(epoch FROM clock_timestamp() - e.ended_at)))::int AS left_s
FROM router_allocations e
WHERE e.ended_at > clock_timestamp() - make_interval(secs => $1)
  AND NOT EXISTS (SELECT FROM router_allocations o WHERE o.call_sid = e.call_sid AND o.ended_at IS NULL)
GROUP BY e.call_sid
