-- The attempt of a call that we have heard of before: its webhook was sent again.
SELECT id, merchant_id, state, end_reason FROM attempts WHERE carrier = $1 AND carrier_call_id = $2
