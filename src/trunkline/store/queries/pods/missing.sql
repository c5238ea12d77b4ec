-- Pods at which at least two calls in a row did not reach the agent.
SELECT name FROM pods WHERE missed >= 2 ORDER BY name
