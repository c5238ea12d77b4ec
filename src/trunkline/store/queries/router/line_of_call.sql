-- Whose call this is. The carriers are named so that the index over (carrier, call) finds it.
SELECT carrier, account FROM attempts WHERE carrier = ANY($1::text[]) AND carrier_call_id = $2 LIMIT 1
