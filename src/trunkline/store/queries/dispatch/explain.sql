-- Why leads could not be locked as their grants say, read after the fact: only for an answer, never to act on.
SELECT g.attempt_id, l.status, l.version, l.due_at, clock_timestamp() AS now,
       l.due_at <= clock_timestamp() + interval '1 second' AS is_due,
       coalesce(to_timestamp(g.granted_ms / 1000.0) <= clock_timestamp() - interval '3 seconds', false) AS is_stale
FROM unnest($1::uuid[], $2::uuid[], $3::bigint[]) AS g (attempt_id, lead_id, granted_ms)
LEFT JOIN leads AS l ON l.id = g.lead_id
