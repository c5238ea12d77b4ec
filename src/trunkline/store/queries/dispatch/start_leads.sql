-- Last step of the intent: only the leads whose attempt went in are being processed.
UPDATE leads
SET status = 'PROCESSING', attempt_count = attempt_count + 1, version = version + 1, updated_at = now()
WHERE id = ANY($1::uuid[])
