-- What became of the staged rows that are no new leads: the lead that has their request_id, or none, where the person is
-- on a list. Asked in a later statement than `load`: a lead that it waited for is not in its snapshot.
SELECT s.row_no, known.id, known.request_hash = s.request_hash AS is_same,
       EXISTS (SELECT FROM do_not_call AS d
               WHERE d.phone = s.phone AND (d.expires_at IS NULL OR d.expires_at > now())
                 AND (d.reseller_id IS NULL
                      OR (d.reseller_id = s.reseller_id AND (d.merchant_id IS NULL OR d.merchant_id = s.merchant_id)))
       ) AS is_listed
FROM staged_leads AS s
LEFT JOIN LATERAL (
    SELECT l.id, l.request_hash FROM leads AS l
    WHERE l.merchant_id = s.merchant_id AND l.request_id = s.request_id LIMIT 1) AS known ON true
WHERE known.id IS DISTINCT FROM s.id
