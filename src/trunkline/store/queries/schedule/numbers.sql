-- Every number with what it may carry now. One that is draining or disabled may not dial.
SELECT id, pool_id, carrier, CASE WHEN status = 'active' THEN max_channels ELSE 0 END AS max_channels
FROM numbers
