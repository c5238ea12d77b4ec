-- The number that is called, held against dials and other calls until the commit, with what its owner decided. Dials hold
-- it FOR SHARE: whoever comes second waits, and counts afterwards. Nothing may be counted here: this statement's snapshot
-- is older than its lock.
SELECT n.id, n.status, n.max_channels, coalesce(p.admits, 'everybody') AS admits,
       coalesce(p.whitelist, '{}') AS whitelist, coalesce(p.otherwise, 'reject') AS otherwise, p.message, p.redirect_to,
       m.id AS merchant_id, m.reseller_id
FROM numbers AS n
LEFT JOIN inbound_policies AS p ON p.number_id = n.id
LEFT JOIN merchants AS m ON m.id = coalesce(n.merchant_id, p.merchant_id)
WHERE n.e164 = $1 AND n.carrier = $2 AND n.account = $3
FOR NO KEY UPDATE OF n
