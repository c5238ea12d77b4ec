-- It did not pass. A deferral is counted: there are only so many.
UPDATE prechecks
SET passed_until = '-infinity', claimed_until = clock_timestamp(), deferrals = deferrals + $2, last_answer = $3
WHERE lead_id = $1
