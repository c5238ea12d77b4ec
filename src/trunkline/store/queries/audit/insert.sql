-- Who did what to whom, in the transaction that did it.
INSERT INTO audit_log (actor, action, subject, reason, details, reseller_id, merchant_id)
VALUES ($1, $2, $3, $4, $5, $6, $7)
