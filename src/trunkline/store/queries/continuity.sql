-- name: advance
-- One beat further, from the beat that the caller has seen, and from no other: counting on from an earlier one would hide
-- that the database was restored. Or past every beat that any process has seen ($3), so that a restore is found once: by the
-- first process that reports it.
UPDATE continuity SET beat = greatest(beat, $3) + 1, beat_at = clock_timestamp()
WHERE installation = $1 AND beat = $2
RETURNING beat

-- name: begin
-- The first start of an installation names it. A copy keeps the name, and is recognised by it.
UPDATE continuity SET installation = gen_random_uuid(), beat = 1, beat_at = clock_timestamp()
WHERE installation IS NULL

-- name: is_empty
-- Has this database no lead to call, and no reminder to make one from?
SELECT NOT EXISTS (SELECT FROM leads) AND NOT EXISTS (SELECT FROM reminders)
