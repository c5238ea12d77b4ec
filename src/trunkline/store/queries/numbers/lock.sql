-- Hold a number against dialers, who lock it FOR SHARE in their intent: after this, its calls can be counted.
SELECT id FROM numbers WHERE id = $1 FOR UPDATE
