-- Remove a pool. Foreign keys refuse it while a number, a lead or a merchant names it.
DELETE FROM pools WHERE id = $1
