-- One account.
SELECT * FROM carrier_accounts WHERE id = $1
