-- The lead that an earlier request with this id made.
SELECT * FROM leads WHERE merchant_id = $1 AND request_id = $2
