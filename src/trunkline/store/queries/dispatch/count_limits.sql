-- Third step: what every intent counts: calls to persons, the paces, doubts of accounts, and calls above a number's
-- maximum. A statement of its own, later than the locks: its snapshot holds everything that was committed by those we
-- waited for. Live attempts count; what was certainly not placed (rejected, absent) does not.
-- Every row answers one question, by its place in the list of its kind: (kind, which, n, m, at, flag).
--
-- $1-$5 calls to a person: phone, merchant or '' for all, at most, window in s, who asks
-- $6-$7 paces: kind, subject   $8-$9 accounts: carrier, account   $10-$11 numbers and their maximum
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
SELECT 'pace', q.which, NULL, NULL, p.next_start_at, NULL
FROM unnest($6::text[], $7::text[]) WITH ORDINALITY AS q (kind, subject, which)
CROSS JOIN LATERAL (SELECT next_start_at FROM paces WHERE kind = q.kind AND subject = q.subject LIMIT 1) AS p
UNION ALL
SELECT 'doubt', q.which, doubts.n,
       -- A few doubts are nothing; only beyond them is it worth adding up the account's channels.
       CASE WHEN doubts.n > 3 THEN (SELECT sum(n.max_channels) FROM numbers AS n
                                    WHERE n.carrier = q.carrier AND n.account = q.account) END,
       NULL, NULL
FROM unnest($8::text[], $9::text[]) WITH ORDINALITY AS q (carrier, account, which)
CROSS JOIN LATERAL (SELECT count(*) AS n FROM attempts AS a
                    WHERE a.carrier = q.carrier AND a.account = q.account AND a.state = 'in_doubt') AS doubts
UNION ALL
SELECT 'number', q.which, (SELECT count(*) FROM attempts AS a WHERE a.number_id = q.id AND a.holds_channel),
       NULL, NULL, true
FROM unnest($10::uuid[], $11::int[]) WITH ORDINALITY AS q (id, max_channels, which)
CROSS JOIN LATERAL (
    SELECT a.channel_no FROM attempts AS a
    WHERE a.number_id = q.id AND a.holds_channel ORDER BY a.channel_no DESC LIMIT 1) AS highest
WHERE highest.channel_no > q.max_channels
