-- One of the due series, until the transaction ends; no row if somebody else has it, or has made its occurrence already.
SELECT *, clock_timestamp() AS now FROM reminders
WHERE id = $1 AND status = 'ACTIVE' AND next_at <= clock_timestamp() + make_interval(secs => $2)
FOR NO KEY UPDATE SKIP LOCKED
