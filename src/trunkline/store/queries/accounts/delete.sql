-- Remove an account that no number dials with.
DELETE FROM carrier_accounts AS a
WHERE a.id = $1 AND NOT EXISTS (SELECT FROM numbers AS n WHERE n.carrier = a.carrier AND n.account = a.name)
RETURNING a.id
