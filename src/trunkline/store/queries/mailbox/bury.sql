-- Park a mailbox as dead whose workers were lost too often. Guarded by the fence.
UPDATE mailboxes
SET processing_status = 'dead', claimable_at = NULL, locked_by = NULL
WHERE kind = $1 AND key = $2 AND fence = $3 AND processing_status = 'processing'
RETURNING last_error
