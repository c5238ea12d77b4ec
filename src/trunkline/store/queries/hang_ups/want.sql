-- The live calls of leads that are locked shall end: the carrier is asked as soon as it is known which call it is.
UPDATE attempts AS a
SET hang_up_at = coalesce(a.hang_up_at, clock_timestamp())
FROM (SELECT id FROM attempts
      WHERE lead_id = ANY($1::uuid[]) AND state IN ('dialing', 'in_doubt', 'accepted', 'ringing', 'answered')
      ORDER BY id FOR NO KEY UPDATE) AS live
WHERE a.id = live.id
