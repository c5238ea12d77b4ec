-- How many attempts of each account are in doubt, beside how many channels it has. Only accounts with any doubt.
SELECT a.carrier, a.account, count(*)::int AS in_doubt,
       (SELECT coalesce(sum(n.max_channels), 0) FROM numbers AS n
        WHERE n.carrier = a.carrier AND n.account = a.account)::int AS channels
FROM attempts AS a
WHERE a.holds_channel AND a.state = 'in_doubt'
GROUP BY a.carrier, a.account
