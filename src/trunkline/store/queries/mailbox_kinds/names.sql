-- The kinds of a tenant and of those below it.
SELECT kind FROM mailbox_kinds WHERE reseller_id = $1 AND ($2::text IS NULL OR merchant_id = $2)
