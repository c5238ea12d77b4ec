-- Jobs that this worker owns and does not know of: the reply to its claim was lost.
SELECT id, fence FROM job_outbox
WHERE status = 'IN_PROGRESS' AND locked_by = $1 AND NOT (id = ANY ($2::uuid[]))
FOR UPDATE SKIP LOCKED
