-- Claim mailboxes that have work, and read their pending events: migration 0003 says how, and why it is a function.
SELECT mailbox_key, mailbox_id, fence, processed, appended, failures, seq, type, payload, created_at
FROM mailbox_claim($1, $2, $3, $4, $5, $6)
