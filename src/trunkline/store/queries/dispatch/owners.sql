-- Who stood in the way of attempts that did not go in: the attempt on the channel, the one that calls the same person from
-- the same number, or the lead's own. Read in a later statement than the insert, which may have waited for it.
SELECT w.id, c.id AS channel_owner, p.id AS person_owner, o.id AS lead_owner
FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::int[], $5::text[], $6::text[])
     AS w (id, lead_id, number_id, channel_no, to_phone, from_phone)
LEFT JOIN attempts AS c ON c.number_id = w.number_id AND c.channel_no = w.channel_no AND c.holds_channel
LEFT JOIN attempts AS p ON p.to_phone = w.to_phone AND p.from_phone = w.from_phone AND p.direction = 'outbound'
    AND p.state IN ('dialing', 'in_doubt', 'accepted', 'ringing', 'answered')
LEFT JOIN attempts AS o ON o.lead_id = w.lead_id
    AND o.state IN ('dialing', 'in_doubt', 'accepted', 'ringing', 'answered')
