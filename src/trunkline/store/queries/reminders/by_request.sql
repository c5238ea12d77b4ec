-- The series that an earlier request made.
SELECT *, clock_timestamp() AS now FROM reminders WHERE merchant_id = $1 AND request_id = $2
