-- Remove a reseller. Foreign keys refuse it while anything hangs below it.
DELETE FROM resellers WHERE id = $1
