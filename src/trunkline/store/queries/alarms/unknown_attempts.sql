-- Attempts of unknown fate whose channel is still held, by carrier account.
SELECT carrier || '/' || account AS subject, count(*)::float8 AS value
FROM attempts WHERE holds_channel AND state = 'unknown'
GROUP BY 1
