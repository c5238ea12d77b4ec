-- A new process has the pod's name: what the one before it had is lost. The calls keep their rows and may have another pod.
UPDATE allocations AS a SET pod = NULL, slot = NULL, incarnation = NULL
FROM (SELECT id FROM allocations WHERE pod = $1 AND incarnation < $2 AND ended_at IS NULL AND NOT coalesce(call = ANY($3::text[]), false)
      ORDER BY id FOR NO KEY UPDATE) AS lost
WHERE a.id = lost.id
