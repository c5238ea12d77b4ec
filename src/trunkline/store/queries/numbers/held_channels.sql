-- The channels of a number that a call holds or may still hold.
SELECT count(*) FROM attempts WHERE number_id = $1 AND holds_channel
