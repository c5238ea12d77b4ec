-- Claim jobs of a type again.
DELETE FROM job_pauses WHERE job_type = $1 RETURNING job_type
