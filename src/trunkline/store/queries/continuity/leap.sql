-- Past everything that anybody remembers ($3), so that a restore is noticed once. The first to say so does it.
UPDATE continuity SET beat = greatest(beat, $3) + 1, beat_at = clock_timestamp()
WHERE installation = $1 AND beat = $2
RETURNING beat
