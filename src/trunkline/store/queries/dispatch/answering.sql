-- How many calls nobody has answered yet and how many are going on, how many of them have a pod, and which share of the last
-- thousand calls of the last hour was answered. With fewer than twenty to go by, every call is expected to be answered.
-- Calls of these carriers ($1) need no pod. A pod whose call is none of ours, or is over, is not among those that ours have.
WITH live AS MATERIALIZED (
    SELECT a.state, a.carrier_call_id FROM attempts AS a
    WHERE a.holds_channel AND a.carrier <> ALL($1::text[])
      AND a.state IN ('dialing', 'in_doubt', 'accepted', 'ringing', 'answered')
), lately AS (
    SELECT a.answered_at FROM attempts AS a
    WHERE a.direction = 'outbound' AND a.state = 'ended' AND a.carrier <> ALL($1::text[])
      AND a.intent_at > clock_timestamp() - interval '1 hour'
    ORDER BY a.id DESC LIMIT 1000
)
SELECT (SELECT count(*) FROM live WHERE state <> 'answered') AS unanswered,
       (SELECT count(*) FROM live WHERE state = 'answered') AS answered,
       (SELECT count(*) FROM live
        WHERE EXISTS (SELECT FROM router_allocations AS r
                      WHERE r.call_sid = live.carrier_call_id AND r.ended_at IS NULL)) AS with_pod,
       CASE WHEN count(*) < 20 THEN 1.0
            ELSE greatest(0.05, count(answered_at)::float8 / count(*)) END AS rate
FROM lately
