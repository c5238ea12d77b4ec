-- name: delete
-- Delete a kind that has no mailboxes: a later owner of its name must not find another's events.
DELETE FROM mailbox_kinds
WHERE kind = $1 AND NOT EXISTS (SELECT FROM mailboxes WHERE kind = $1)
RETURNING kind

-- name: get
-- One kind, if this tenant may see it.
SELECT * FROM mailbox_kinds
WHERE kind = $3 AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)

-- name: insert
-- A new kind, unless there is one of this name.
INSERT INTO mailbox_kinds ({columns}) VALUES ({values})
ON CONFLICT DO NOTHING
RETURNING *

-- name: list
-- A page of kinds that this tenant may see, by name.
SELECT * FROM mailbox_kinds
WHERE ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2) AND kind > $3
ORDER BY kind
LIMIT $4

-- name: names
-- The kinds of a tenant and of those below it.
SELECT kind FROM mailbox_kinds WHERE reseller_id = $1 AND ($2::text IS NULL OR merchant_id = $2)

-- name: rotate
-- A new secret. The old one stays valid beside it for a while.
UPDATE mailbox_kinds
SET old_secret_sealed = secret_sealed, old_secret_until = now() + make_interval(secs => $3), secret_sealed = $2
WHERE kind = $1
RETURNING *

-- name: secrets
-- The secrets that may sign an append to this kind now.
SELECT secret_sealed, CASE WHEN old_secret_until > now() THEN old_secret_sealed END AS old_secret_sealed
FROM mailbox_kinds WHERE kind = $1
