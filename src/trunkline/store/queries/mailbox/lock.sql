-- Lock mailboxes until the end of the transaction, sorted, and make those that are missing: migration 0031 says how.
SELECT FROM mailbox_lock($1, $2, $3)
