-- What only some intents count, later than the locks like `count_limits`: when somebody was last talked with, calls at
-- once, and what merchants have used today.
--
-- $1-$3 last talk with a person: phone, merchant, cooldown in s
-- $4 merchants, $5-$6 campaigns (merchant, campaign): calls at once
-- $7-$11 days of merchants: merchant, day, its first moment, the attempts and the money from which it matters
SELECT 'talk' AS kind, q.which, NULL::bigint AS n, NULL::bigint AS m, last.answered_at AS at, NULL::boolean AS flag
FROM unnest($1::text[], $2::text[], $3::int[]) WITH ORDINALITY AS q (phone, merchant_id, cooldown_s, which)
CROSS JOIN LATERAL (
    SELECT max(a.answered_at) AS answered_at
    FROM attempts AS a
    WHERE a.to_phone = q.phone AND a.direction = 'outbound' AND a.merchant_id = q.merchant_id
      -- No call lasts for four hours.
      AND a.send_at > statement_timestamp() - make_interval(secs => q.cooldown_s + 14400)
      -- Nobody of ours talked with who found no agent: that is no contact, and our failing costs the lead nothing.
      AND a.agent IS DISTINCT FROM 'none'
      AND a.answered_at > statement_timestamp() - make_interval(secs => q.cooldown_s)) AS last
WHERE last.answered_at IS NOT NULL
UNION ALL
SELECT 'merchant', q.which, (SELECT count(*) FROM attempts AS a
                                  WHERE a.holds_channel AND a.direction = 'outbound' AND a.merchant_id = q.merchant_id),
       NULL, NULL, NULL
FROM unnest($4::text[]) WITH ORDINALITY AS q (merchant_id, which)
UNION ALL
SELECT 'campaign', q.which,
       (SELECT count(*) FROM attempts AS a
        WHERE a.holds_channel AND a.direction = 'outbound' AND a.merchant_id = q.merchant_id
          AND a.campaign_id = q.campaign_id),
       NULL, NULL, NULL
FROM unnest($5::text[], $6::uuid[]) WITH ORDINALITY AS q (merchant_id, campaign_id, which)
UNION ALL
SELECT 'day', q.which, d.attempts - coalesce(u.attempts, 0), d.spent_micros - coalesce(u.micros, 0), NULL, NULL
FROM unnest($7::text[], $8::date[], $9::timestamptz[], $10::bigint[], $11::bigint[])
     WITH ORDINALITY AS q (merchant_id, day, first_at, attempts_from, micros_from, which)
JOIN merchant_days AS d ON d.merchant_id = q.merchant_id AND d.day = q.day
-- What was counted and then not placed is given back, looked up only when it matters.
LEFT JOIN LATERAL (
    SELECT count(*) AS attempts, sum(a.reserved_micros)::bigint AS micros
    FROM attempts AS a
    WHERE (d.attempts >= q.attempts_from OR d.spent_micros >= q.micros_from)
      AND a.merchant_id = q.merchant_id AND a.state IN ('rejected', 'absent') 
      -- A call that was made ready yesterday, within a second of midnight, may be one of today's.
      AND a.intent_at >= q.first_at - interval '1 second' AND greatest(a.intent_at, a.lead_due_at) >= q.first_at) AS u ON true
