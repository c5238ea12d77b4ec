-- The end of locked leads that wait: nobody wants them called any more.
UPDATE leads
SET status = 'FINISHED', outcome = 'ABORTED', outcome_reason = $2, version = version + 1, finished_at = now(),
    updated_at = now()
WHERE id = ANY($1::uuid[]) AND status = 'BACKLOG'
RETURNING *
