-- In the transaction that sends the word.
UPDATE alarms
SET raise_told_at = coalesce(raise_told_at, clock_timestamp()),
    clear_told_at = CASE WHEN cleared_at IS NOT NULL THEN clock_timestamp() END
WHERE id = ANY($1)
