-- A locked campaign's next status. The first start and the end are remembered.
UPDATE campaigns
SET status = $2, stop_reason = coalesce($3, stop_reason), stop_hangs_up = stop_hangs_up OR $4,
    started_at = CASE WHEN $2 = 'RUNNING' THEN coalesce(started_at, clock_timestamp()) ELSE started_at END,
    stopped_at = CASE WHEN $2 = 'STOPPED' THEN clock_timestamp() END, updated_at = clock_timestamp()
WHERE id = $1
RETURNING *, clock_timestamp() AS now
