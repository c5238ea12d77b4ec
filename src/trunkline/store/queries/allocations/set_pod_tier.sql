-- The tier that the router gave a pod, and how many calls it may have there.
UPDATE pods SET tier = $2, calls_max = $3 WHERE name = $1
