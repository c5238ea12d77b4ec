-- How many calls nobody has answered yet, and which share of the last thousand calls of the last hour was answered. With
-- fewer than twenty to go by, every call is expected to be answered. Calls of these carriers ($1) need no pod.
SELECT (SELECT count(*) FROM attempts AS a
        WHERE a.holds_channel AND a.direction = 'outbound' AND a.carrier <> ALL($1::text[])
          AND a.state IN ('dialing', 'in_doubt', 'accepted', 'ringing')) AS unanswered,
       CASE WHEN count(*) < 20 THEN 1.0
            ELSE greatest(0.05, count(answered_at)::float8 / count(*)) END AS rate
FROM (SELECT a.answered_at FROM attempts AS a
      WHERE a.direction = 'outbound' AND a.state = 'ended' AND a.carrier <> ALL($1::text[])
        AND a.intent_at > clock_timestamp() - interval '1 hour'
      ORDER BY a.id DESC LIMIT 1000) AS lately
