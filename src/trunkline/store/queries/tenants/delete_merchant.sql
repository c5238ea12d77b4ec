-- Remove a merchant. Foreign keys refuse it while anything hangs below it.
DELETE FROM merchants WHERE id = $1
