-- Attempts whose COMMIT was never answered are written as not sent, whether or not it went through. The upsert waits for
-- a commit in flight; a read would not. What went through and has moved on since (nobody but us could have sent it, but a
-- loop may have looked at it) is left alone. What did not go through leaves a row that keeps the id from being used.
-- The time of the intent is the old one: a later attempt of the lead must stay the newest.
INSERT INTO attempts AS a (id, lead_id, attempt_no, reseller_id, merchant_id, campaign_id, number_id, channel_no,
                           carrier, account, to_phone, from_phone, lead_due_at, intent_at, send_at, dialer,
                           state, holds_channel, ended_at, end_reason, next_check_at)
SELECT id, lead_id, attempt_no, reseller_id, merchant_id, campaign_id, number_id, channel_no,
       carrier, account, to_phone, from_phone, lead_due_at, intent_at, send_at, $16,
       'rejected', false, clock_timestamp(), 'not_sent', NULL
FROM unnest($1::uuid[], $2::uuid[], $3::smallint[], $4::text[], $5::text[], $6::uuid[], $7::uuid[], $8::int[],
            $9::text[], $10::text[], $11::text[], $12::text[], $13::timestamptz[], $14::timestamptz[],
            $15::timestamptz[])
     AS w (id, lead_id, attempt_no, reseller_id, merchant_id, campaign_id, number_id, channel_no,
           carrier, account, to_phone, from_phone, lead_due_at, intent_at, send_at)
ORDER BY id
ON CONFLICT (id) DO UPDATE
SET state = 'rejected', holds_channel = false, ended_at = clock_timestamp(), end_reason = 'not_sent', next_check_at = NULL
WHERE a.state IN ('dialing', 'in_doubt') AND a.dialer = EXCLUDED.dialer
RETURNING a.lead_id
