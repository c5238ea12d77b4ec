-- Somebody may be called again.
DELETE FROM do_not_call WHERE id = $1
