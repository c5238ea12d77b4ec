-- Channels of the tenant's own numbers: how many there are, how many are held. Of shared numbers others would be seen.
SELECT coalesce(sum(n.max_channels), 0)::int AS capacity,
       coalesce(sum((SELECT count(*) FROM attempts AS a WHERE a.number_id = n.id AND a.holds_channel)), 0)::int AS held
FROM numbers AS n
WHERE n.status <> 'disabled'
  AND ($1::text IS NULL OR n.reseller_id = $1) AND ($2::text IS NULL OR n.merchant_id = $2)
