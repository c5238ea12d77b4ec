-- A page of kinds that this tenant may see, by name.
SELECT * FROM mailbox_kinds
WHERE ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2) AND kind > $3
ORDER BY kind
LIMIT $4
