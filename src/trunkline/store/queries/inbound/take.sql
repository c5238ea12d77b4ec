-- A call that came in takes the lowest free channel, under the number's lock and the same index as every dial. Calls above
-- a lowered maximum count too. No row: no channel is free, or the call has an attempt already.
INSERT INTO attempts (id, direction, attempt_no, reseller_id, merchant_id, number_id, channel_no, carrier, account,
                      to_phone, from_phone, state, carrier_call_id, dialer, ringing_at, answered_at)
SELECT $1, 'inbound', 1, $2, $3, $4, free.no, $5, $6, $7, $8, 'answered', $9, $10, clock_timestamp(), clock_timestamp()
FROM (SELECT line.no
      FROM generate_series(1, $11::int) AS line (no)
      WHERE NOT EXISTS (SELECT FROM attempts AS a
                        WHERE a.number_id = $4 AND a.channel_no = line.no AND a.holds_channel)
      ORDER BY line.no LIMIT 1) AS free
WHERE (SELECT count(*) FROM attempts AS a WHERE a.number_id = $4 AND a.holds_channel) < $11::int
ON CONFLICT DO NOTHING
RETURNING id, channel_no
