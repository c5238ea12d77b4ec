-- What the cluster says of a pod. Whether one leaves that sends heartbeats it says itself, unless the cluster deletes it; its
-- address and version it says better too. A successor of the same name does not inherit a drain.
-- $1 name  $2 uid  $3 ready  $4 being deleted  $5 ip  $6 port  $7 version
UPDATE pods AS p
SET draining_until = CASE WHEN p.uid = '' AND p.past_uid NOT IN ('', $2) THEN NULL ELSE p.draining_until END,
    uid = CASE WHEN p.uid = '' AND p.past_uid = $2 THEN '' ELSE $2 END,
    is_ready = $3,
    leaving_since = CASE WHEN $4 THEN coalesce(p.leaving_since, clock_timestamp()) WHEN p.sequence = 0 THEN NULL ELSE p.leaving_since END,
    ip = CASE WHEN $5 <> '' AND (p.sequence = 0 OR p.ip = '') THEN $5 ELSE p.ip END,
    port = CASE WHEN $6 <> 0 AND (p.sequence = 0 OR p.port = 0) THEN $6 ELSE p.port END,
    version = CASE WHEN $7 <> '' AND (p.sequence = 0 OR p.version = '') THEN $7 ELSE p.version END
WHERE p.name = $1
