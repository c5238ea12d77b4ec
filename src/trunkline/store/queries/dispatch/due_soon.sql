-- The leads the schedule should know: in BACKLOG and due before the horizon, from where the last page ended.
SELECT id, version, pool_id, due_at
FROM leads
WHERE status = 'BACKLOG' AND due_at < now() + make_interval(secs => $1) AND (due_at, id) > ($2, $3::uuid)
ORDER BY due_at, id
LIMIT $4
