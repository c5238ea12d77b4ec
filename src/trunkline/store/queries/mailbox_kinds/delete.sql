-- Forget a kind that has no mailboxes: a later owner of its name must not find another's events.
DELETE FROM mailbox_kinds
WHERE kind = $1 AND NOT EXISTS (SELECT FROM mailboxes WHERE kind = $1)
RETURNING kind
