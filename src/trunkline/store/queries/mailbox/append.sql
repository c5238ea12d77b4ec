-- Append events, those that are new: migration 0031 says how, and why it is a function.
SELECT in_box, number, status_before, known_at FROM mailbox_append($1, $2, $3, $4, $5, $6, $7, $8, $9)
