-- When each attempt of a run was due, to compare with the moment in which the carrier got its request.
SELECT a.id, a.lead_due_at
FROM attempts AS a JOIN leads AS l ON l.id = a.lead_id
WHERE l.merchant_id = ANY($1) AND starts_with(l.request_id, $2)
