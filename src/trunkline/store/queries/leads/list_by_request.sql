-- The leads that requests with one id made: one at most of each merchant, found merchant by merchant through the key that
-- makes requests idempotent. An index of request ids alone would be written with every lead, for a question that people ask.
-- $1, $2 whose   $3 merchant   $4 request   $5 campaign   $6 phone   $7 statuses   $8 before   $9 how many
SELECT l.*
FROM merchants AS m
JOIN leads AS l ON l.merchant_id = m.id AND l.request_id = $4
WHERE ($1::text IS NULL OR m.reseller_id = $1)
  AND ($2::text IS NULL OR m.id = $2)
  AND ($3::text IS NULL OR m.id = $3)
  AND ($5::uuid IS NULL OR l.campaign_id = $5)
  AND ($6::text IS NULL OR l.phone = $6)
  AND l.status = ANY($7::text[])
  AND l.id < $8::uuid
ORDER BY l.id DESC
LIMIT $9
