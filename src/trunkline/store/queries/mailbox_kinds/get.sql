-- One kind, if this tenant may see it.
SELECT * FROM mailbox_kinds
WHERE kind = $3 AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)
