-- Leads whose call we had given up on and that was made after all: they are being called, and the attempt counts. Nothing
-- is changed of a lead that has ended. The new version makes every entry and grant of its retry stale.
UPDATE leads
SET status = 'PROCESSING', attempt_count = attempt_count + 1, version = version + 1, updated_at = clock_timestamp()
WHERE id = ANY($1::uuid[]) AND status = 'BACKLOG'
