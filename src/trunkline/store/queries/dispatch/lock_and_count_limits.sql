-- Second step of the intent: lock the limits, then count what every intent counts. Migration 0033 has both, and says why
-- they are two statements of one function. Its plans are made once, as `lock_granted` has it for this transaction.
-- A row is a number under its lock (kind 'locked') or answers one question: (kind, which, n, m, at, flag).
--
-- $1 keys of names, in order   $2 numbers
-- $3-$7 calls to a person: phone, merchant or '' for all, at most, window in s, who asks
-- $8-$9 paces: kind, subject   $10-$11 accounts: carrier, account
SELECT kind, which, n, m, at, flag, id, e164, carrier, account, max_channels, starts_per_s, status, pool_id
FROM lock_and_count_limits($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
