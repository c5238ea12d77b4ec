-- name: claim
-- Accounts whose ended calls of a period are to be read for their prices, by one process at a time: of these carriers, and
-- with attempts of ours. A new account begins now. At most an hour is read at once.
-- $1 carriers  $2 lags in seconds  $3 lease in seconds
WITH periods AS (
    SELECT l.carrier, l.account, lag.lag_s
    FROM account_looks AS l CROSS JOIN unnest($2::int[]) AS lag (lag_s)
    WHERE l.carrier = ANY($1::text[])
), inserted AS (
    INSERT INTO cost_readings (carrier, account, lag_s, read_to)
    SELECT carrier, account, lag_s, clock_timestamp() - make_interval(secs => lag_s) FROM periods ORDER BY 1, 2, 3
    ON CONFLICT DO NOTHING
), due AS (
    SELECT r.carrier, r.account, r.lag_s
    FROM cost_readings AS r
    WHERE r.carrier = ANY($1::text[]) AND (r.leased_until IS NULL OR r.leased_until < clock_timestamp())
      AND r.read_to + make_interval(secs => r.lag_s) <= clock_timestamp() - interval '60 seconds'
    ORDER BY 1, 2, 3
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE cost_readings AS r SET leased_until = clock_timestamp() + make_interval(secs => $3)
FROM due
WHERE r.carrier = due.carrier AND r.account = due.account AND r.lag_s = due.lag_s
RETURNING r.carrier, r.account, r.lag_s, r.read_to AS since,
          least(clock_timestamp() - make_interval(secs => r.lag_s), r.read_to + interval '1 hour') AS until

-- name: done
-- The period was read to its end; without $4 it was not, and is read again.
UPDATE cost_readings SET leased_until = NULL, read_to = coalesce($4, read_to)
WHERE carrier = $1 AND account = $2 AND lag_s = $3

-- name: record
-- Prices that a carrier reported of calls of ours. The first figure stays: a later one corrects the bill, not the call.
-- $1 carrier  $2-$4 call ids, micros, currencies
UPDATE attempts AS a
SET carrier_cost_micros = c.micros, carrier_cost_currency = c.currency
FROM (SELECT a.id, c.micros, c.currency
      FROM unnest($2::text[], $3::bigint[], $4::text[]) AS c (call_id, micros, currency)
      JOIN attempts AS a ON a.carrier = $1 AND a.carrier_call_id = c.call_id
      WHERE a.carrier_cost_micros IS NULL
      ORDER BY a.id FOR NO KEY UPDATE OF a) AS c
WHERE a.id = c.id
RETURNING a.id
