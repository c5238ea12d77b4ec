-- What the carrier answered, many at once: migration 0035 says how it is guarded, and why it is a function.
SELECT id, state FROM attempts_answer($1, $2, $3, $4, $5)
