-- Calls that hold a channel now, by state. As many rows are read as there are calls, never more than there are channels.
SELECT state, count(*)::int AS calls
FROM attempts
WHERE holds_channel AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)
GROUP BY state
