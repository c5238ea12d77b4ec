-- Prolong leases. Rows not returned are no longer ours. Says which jobs somebody wants cancelled.
UPDATE job_outbox
SET lease_expires_at = clock_timestamp() + make_interval(secs => $4)
WHERE id = ANY ($1::uuid[]) AND fence = ANY ($2::bigint[]) AND locked_by = $3
RETURNING id, cancel_requested
