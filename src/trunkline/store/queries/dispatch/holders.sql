-- Who truly holds a channel.
SELECT id, number_id, channel_no, lead_id
FROM attempts
WHERE holds_channel
