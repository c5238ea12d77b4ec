-- Complete mailboxes: migration 0034 says how, and why it is a function.
SELECT key, processing_status, took FROM mailbox_complete($1, $2, $3, $4, $5, $6)
