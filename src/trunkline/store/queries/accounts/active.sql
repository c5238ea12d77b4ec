-- Every account that is in use, for the directory of a process.
SELECT * FROM carrier_accounts WHERE status = 'active' ORDER BY id
