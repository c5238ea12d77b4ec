-- A new kind, unless there is one of this name.
INSERT INTO mailbox_kinds (kind, reseller_id, merchant_id, secret_sealed)
VALUES ($1, $2, $3, $4)
ON CONFLICT DO NOTHING
RETURNING *
