-- What was decided about calls that come in on a number.
SELECT * FROM inbound_policies WHERE number_id = $1
