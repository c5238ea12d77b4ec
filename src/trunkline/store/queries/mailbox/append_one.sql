-- Append one event, if it is new: migration 0014 says how it differs from a batch of one, which is in cost alone.
SELECT number, is_new, status_before FROM mailbox_append_one($1, $2, $3, $4, $5, $6)
