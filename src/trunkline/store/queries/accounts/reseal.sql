-- The same credentials under a newer key. Whoever changed them meanwhile wins.
UPDATE carrier_accounts SET credentials = $3 WHERE id = $1 AND credentials = $2
