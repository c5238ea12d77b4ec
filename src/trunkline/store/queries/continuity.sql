-- name: advance
-- One beat further, from the place where the caller knows the database to be, and from no other: counting on from an
-- earlier place would hide that it was restored. Or past everything that anybody remembers ($3), so that a restore is noticed
-- once: the first to say so does it.
UPDATE continuity SET beat = greatest(beat, $3) + 1, beat_at = clock_timestamp()
WHERE installation = $1 AND beat = $2
RETURNING beat

-- name: begin
-- The first start of an installation gives it its name. A copy keeps the name, which is how it is recognised.
UPDATE continuity SET installation = gen_random_uuid(), beat = 1, beat_at = clock_timestamp()
WHERE installation IS NULL

-- name: is_empty
-- Is there nobody whom this database could ring: no lead, and no reminder to make one from?
SELECT NOT EXISTS (SELECT FROM leads) AND NOT EXISTS (SELECT FROM reminders)
