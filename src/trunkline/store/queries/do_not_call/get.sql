-- One entry, if it is the tenant's own or below it.
SELECT * FROM do_not_call
WHERE id = $3 AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)
