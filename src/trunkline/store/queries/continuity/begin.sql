-- The first start of an installation gives it its name. A copy keeps the name, which is how it is recognised.
UPDATE continuity SET installation = gen_random_uuid(), beat = 1, beat_at = clock_timestamp()
WHERE installation IS NULL
