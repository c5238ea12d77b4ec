-- Lock the leads of these attempts, in id order, before the attempts themselves are touched.
SELECT l.id
FROM leads AS l
WHERE l.id IN (SELECT lead_id FROM attempts WHERE id = ANY($1::uuid[]))
ORDER BY l.id
FOR NO KEY UPDATE
