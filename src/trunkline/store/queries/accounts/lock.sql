-- One account, held against others who change it: a change of some credentials builds on what is there.
SELECT * FROM carrier_accounts WHERE id = $1 FOR UPDATE
