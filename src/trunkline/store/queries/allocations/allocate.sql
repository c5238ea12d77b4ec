-- Migration 0036 says how a call that was not kept gets its pod, and in which order it locks.
SELECT * FROM allocate_call($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
