-- Lock the circuit breakers of merchants, each with a row from now on, in the order of their names. Whoever counts does so
-- in a later statement: of two transactions that each add a call without an agent, the second one sees the first one's.
INSERT INTO no_agent_brakes AS b (merchant_id)
SELECT DISTINCT m FROM unnest($1::text[]) AS m ORDER BY 1
ON CONFLICT (merchant_id) DO UPDATE SET counts_from = b.counts_from
