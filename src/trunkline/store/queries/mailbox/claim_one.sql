-- Claim one mailbox if it has work, and read its pending events: migration 0032 says how it differs from `claim`, which is
-- in cost alone.
SELECT mailbox_key, mailbox_id, fence, processed, appended, failures, seq, type, payload, created_at
FROM mailbox_claim_one($1, $2, $3, $4, $5)
