-- Ask for the end of a running job. Its worker hears of it when it next renews the lease.
UPDATE job_outbox SET cancel_requested = true WHERE id = $1 AND status = 'IN_PROGRESS'
