-- name: lock
-- Lock the circuit breakers of merchants, inserted if they are missing, in the order of their names. Counting comes in a later
-- statement: of two transactions that each add a call without an agent, the second one sees the first one's.
INSERT INTO no_agent_brakes AS b (merchant_id)
SELECT DISTINCT m FROM unnest($1::text[]) AS m ORDER BY 1
ON CONFLICT (merchant_id) DO UPDATE SET counts_from = b.counts_from

-- name: release
-- A call of these merchants that began after their dials were stopped had its agent: dialling goes on.
UPDATE no_agent_brakes AS b
SET stops_until = NULL, counts_from = clock_timestamp()
FROM (SELECT merchant_id FROM no_agent_brakes
      WHERE merchant_id = ANY($1::text[]) AND stops_until <= clock_timestamp()
      ORDER BY merchant_id FOR NO KEY UPDATE) AS held
WHERE b.merchant_id = held.merchant_id
RETURNING b.merchant_id

-- name: trip
-- Stop the dials of merchants of whose answered calls of the last $2 seconds more than $3, and more than the share $4, had no
-- agent. A tripped breaker stays as it is: calls that rang when it tripped do not trip it again. An overdialled call that
-- found every agent busy is left out: the merchant allows a share of these, and they end overdialling, not dialling, long
-- before that. One whose assigned agent did not come counts as any other.
UPDATE no_agent_brakes AS b
SET stops_until = clock_timestamp() + make_interval(secs => $5)
FROM unnest($1::text[]) AS m (merchant_id)
CROSS JOIN LATERAL (
    SELECT count(*) AS answered, count(*) FILTER (WHERE a.agent = 'none') AS without
    FROM no_agent_brakes AS own
    JOIN attempts AS a ON a.merchant_id = own.merchant_id
    WHERE own.merchant_id = m.merchant_id AND a.direction = 'outbound' AND a.state = 'ended' AND a.answered_at IS NOT NULL
      AND NOT (a.overdial_group IS NOT NULL AND a.agent_joined IS FALSE)
      AND a.ended_at > greatest(own.counts_from, statement_timestamp() - make_interval(secs => $2))) AS lately
WHERE b.merchant_id = m.merchant_id AND b.stops_until IS NULL
  AND lately.without > $3::int AND lately.without > $4::float8 * lately.answered
RETURNING b.merchant_id, b.stops_until, lately.answered::int, lately.without::int
