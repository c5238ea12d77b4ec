-- Accounts in the order in which they were added.
SELECT * FROM carrier_accounts
WHERE id > $1::uuid AND ($2::text IS NULL OR carrier = $2)
ORDER BY id
LIMIT $3
