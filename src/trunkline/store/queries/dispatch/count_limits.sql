-- Third step: what the limits count. A statement of its own, later than the locks: its snapshot holds everything that was
-- committed by those we waited for. Live attempts count; what was certainly not placed (rejected, absent) does not.
-- Every row answers one question, by its place in the list of its kind: (kind, which, n, m, at, flag).
--
-- $1-$5 calls to a person: phone, merchant or '' for all, at most, window in s, who asks
-- $6-$8 last talk with a person: phone, merchant, cooldown in s
-- $9 merchants, $10-$11 campaigns (merchant, campaign): calls at once
-- $12-$16 days of merchants: merchant, day, its first moment, the attempts and the money from which it matters
-- $17-$18 paces: kind, subject   $19-$20 accounts: carrier, account   $21-$22 numbers and their maximum
-- $23 whether to count the calls that nobody has answered yet
SELECT 'now' AS kind, 0::bigint AS which, NULL::bigint AS n, NULL::bigint AS m, clock_timestamp() AS at, NULL::boolean AS flag
UNION ALL
SELECT 'person', q.which, count(c.send_at), NULL, min(c.send_at), coalesce(bool_and(c.own), true)
FROM unnest($1::text[], $2::text[], $3::int[], $4::int[], $5::text[])
     WITH ORDINALITY AS q (phone, merchant_id, max_calls, window_s, asks, which)
LEFT JOIN LATERAL (
    SELECT a.send_at, a.merchant_id = q.asks AS own
    FROM attempts AS a
    WHERE a.to_phone = q.phone AND a.direction = 'outbound'
      AND a.send_at > statement_timestamp() - make_interval(secs => q.window_s)
      AND a.state NOT IN ('rejected', 'absent') AND q.merchant_id IN ('', a.merchant_id)
    ORDER BY a.send_at DESC LIMIT q.max_calls) AS c ON true
GROUP BY q.which
UNION ALL
SELECT 'talk', q.which, NULL, NULL, max(a.answered_at), NULL
FROM unnest($6::text[], $7::text[], $8::int[]) WITH ORDINALITY AS q (phone, merchant_id, cooldown_s, which)
JOIN attempts AS a ON a.to_phone = q.phone AND a.direction = 'outbound' AND a.merchant_id = q.merchant_id
    -- No call lasts for four hours.
    AND a.send_at > statement_timestamp() - make_interval(secs => q.cooldown_s + 14400)
    AND a.answered_at > statement_timestamp() - make_interval(secs => q.cooldown_s)
GROUP BY q.which
UNION ALL
SELECT 'merchant', q.which, (SELECT count(*) FROM attempts AS a
                                  WHERE a.holds_channel AND a.direction = 'outbound' AND a.merchant_id = q.merchant_id),
       NULL, NULL, NULL
FROM unnest($9::text[]) WITH ORDINALITY AS q (merchant_id, which)
UNION ALL
SELECT 'campaign', q.which,
       (SELECT count(*) FROM attempts AS a
        WHERE a.holds_channel AND a.direction = 'outbound' AND a.merchant_id = q.merchant_id
          AND a.campaign_id = q.campaign_id),
       NULL, NULL, NULL
FROM unnest($10::text[], $11::uuid[]) WITH ORDINALITY AS q (merchant_id, campaign_id, which)
UNION ALL
SELECT 'day', q.which, d.attempts - coalesce(u.attempts, 0), d.spent_micros - coalesce(u.micros, 0), NULL, NULL
FROM unnest($12::text[], $13::date[], $14::timestamptz[], $15::bigint[], $16::bigint[])
     WITH ORDINALITY AS q (merchant_id, day, first_at, attempts_from, micros_from, which)
JOIN merchant_days AS d ON d.merchant_id = q.merchant_id AND d.day = q.day
-- What was counted and then not placed is given back, looked up only when it matters.
LEFT JOIN LATERAL (
    SELECT count(*) AS attempts, sum(a.reserved_micros)::bigint AS micros
    FROM attempts AS a
    WHERE (d.attempts >= q.attempts_from OR d.spent_micros >= q.micros_from)
      AND a.merchant_id = q.merchant_id AND a.state IN ('rejected', 'absent') AND a.intent_at >= q.first_at) AS u ON true
UNION ALL
SELECT 'pace', q.which, NULL, NULL, p.next_start_at, NULL
FROM unnest($17::text[], $18::text[]) WITH ORDINALITY AS q (kind, subject, which)
JOIN paces AS p ON p.kind = q.kind AND p.subject = q.subject
UNION ALL
SELECT 'doubt', q.which, doubts.n,
       -- A few doubts are nothing; only beyond them is it worth adding up the account's channels.
       CASE WHEN doubts.n > 3 THEN (SELECT sum(n.max_channels) FROM numbers AS n
                                    WHERE n.carrier = q.carrier AND n.account = q.account) END,
       NULL, NULL
FROM unnest($19::text[], $20::text[]) WITH ORDINALITY AS q (carrier, account, which)
CROSS JOIN LATERAL (SELECT count(*) AS n FROM attempts AS a
                    WHERE a.carrier = q.carrier AND a.account = q.account AND a.state = 'in_doubt') AS doubts
UNION ALL
SELECT 'number', q.which, (SELECT count(*) FROM attempts AS a WHERE a.number_id = q.id AND a.holds_channel),
       NULL, NULL, true
FROM unnest($21::uuid[], $22::int[]) WITH ORDINALITY AS q (id, max_channels, which)
WHERE EXISTS (SELECT FROM attempts AS a
              WHERE a.number_id = q.id AND a.holds_channel AND a.channel_no > q.max_channels)
UNION ALL
SELECT 'unanswered', 0, (SELECT count(*) FROM attempts AS a
                         WHERE a.holds_channel AND a.direction = 'outbound'
                           AND a.state IN ('dialing', 'in_doubt', 'accepted', 'ringing')), NULL, NULL, NULL
WHERE $23::boolean
