-- It may be called, for as long as the answer is fresh.
UPDATE prechecks
SET passed_until = clock_timestamp() + make_interval(secs => $3), claimed_until = clock_timestamp(), last_answer = $4
WHERE lead_id = $1 AND checks_hash = $2
