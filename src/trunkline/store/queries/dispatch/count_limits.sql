-- What every intent counts, without a lock: for somebody who asks why a lead is not called. Migration 0033 has the counting,
-- for an intent too.
-- $1-$5 calls to a person: phone, merchant or '' for all, at most, window in s, who asks
-- $6-$7 paces: kind, subject   $8-$9 accounts: carrier, account   $10 numbers
SELECT kind, which, n, m, at, flag FROM count_limits(statement_timestamp(), $1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
