-- The stream of a call is over, the call is not, and nobody has released it: its agent was lost. The call goes into its next
-- turn and waits for a pod, so that tokens, releases and reports of the lost agent count for nothing from here on. The pod
-- that it had is remembered: until it is heard again nobody knows whether it lives.
-- One compare-and-set: of two requests at once one finds the row, and a release or the end of the attempt wins or loses
-- against it as a whole. A row that is behind the stream was not written while Postgres was away.
-- $1 attempt  $2 the carrier's call id  $3 the turn of the stream that is over
WITH mine AS (
    SELECT a.id, a.pod, a.joined_at IS NULL AS never_joined
    FROM allocations AS a
    WHERE a.id = $1 AND a.call = $2 AND a.turn <= $3 AND a.ended_at IS NULL
    FOR NO KEY UPDATE
)
UPDATE allocations AS a
SET turn = $3::smallint + 1, pod = NULL, slot = NULL, incarnation = NULL, asked_at = clock_timestamp(),
    lost_pods = array_remove(a.lost_pods || mine.pod, NULL),
    -- Of losses that follow each other the first: who was heard since is not among those that died together.
    lost_at = CASE WHEN a.lost_at > clock_timestamp() - interval '10 seconds' THEN a.lost_at ELSE clock_timestamp() END
FROM mine
WHERE a.id = mine.id
RETURNING mine.pod AS lost_pod, a.merchant_id, mine.never_joined
