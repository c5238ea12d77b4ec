-- Every number with its channels: how many there are, how many are held.
SELECT n.e164, n.max_channels, (SELECT count(*) FROM attempts AS a WHERE a.number_id = n.id AND a.holds_channel)::int AS held
FROM numbers AS n
ORDER BY n.e164
