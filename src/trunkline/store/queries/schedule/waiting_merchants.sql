-- Merchants that have leads to call, with their resellers. One look into an index for each merchant.
SELECT m.reseller_id, m.id
FROM merchants AS m
WHERE EXISTS (SELECT FROM leads AS l WHERE l.merchant_id = m.id AND l.status = 'BACKLOG')
