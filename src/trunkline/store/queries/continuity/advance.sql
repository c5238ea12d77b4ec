-- One beat further, from the place where the caller knows the database to be, and from no other: counting on from an
-- earlier place would hide that it was restored.
UPDATE continuity SET beat = beat + 1, beat_at = clock_timestamp()
WHERE installation = $1 AND beat = $2
RETURNING beat
