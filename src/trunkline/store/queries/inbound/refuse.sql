-- A call that came in and was not taken, and why. It never had a channel.
INSERT INTO attempts (id, direction, attempt_no, reseller_id, merchant_id, number_id, channel_no, carrier, account,
                      to_phone, from_phone, state, holds_channel, carrier_call_id, dialer, ringing_at, ended_at,
                      end_reason, next_check_at)
VALUES ($1, 'inbound', 1, $2, $3, $4, NULL, $5, $6, $7, $8, 'rejected', false, $9, $10, clock_timestamp(),
        clock_timestamp(), $11, NULL)
ON CONFLICT DO NOTHING
