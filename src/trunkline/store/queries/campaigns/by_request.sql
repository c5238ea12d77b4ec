-- The campaign that an earlier request made.
SELECT *, clock_timestamp() AS now FROM campaigns WHERE merchant_id = $1 AND request_id = $2
