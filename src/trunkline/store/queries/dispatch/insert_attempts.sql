-- Third step of the intent: one attempt per lead, in the order of (number, channel), so that two batches meet each
-- other in one order. A conflict with any of the unique indexes skips the row: only returned ids may be sent.
INSERT INTO attempts (id, lead_id, attempt_no, reseller_id, merchant_id, number_id, channel_no,
                      carrier, account, to_phone, from_phone, dialer, lead_due_at)
SELECT id, lead_id, attempt_no, reseller_id, merchant_id, number_id, channel_no,
       carrier, account, to_phone, from_phone, $13, lead_due_at
FROM unnest($1::uuid[], $2::uuid[], $3::smallint[], $4::text[], $5::text[], $6::uuid[], $7::int[],
            $8::text[], $9::text[], $10::text[], $11::text[], $12::timestamptz[])
     AS a (id, lead_id, attempt_no, reseller_id, merchant_id, number_id, channel_no,
           carrier, account, to_phone, from_phone, lead_due_at)
ORDER BY number_id, channel_no
ON CONFLICT DO NOTHING
RETURNING id
