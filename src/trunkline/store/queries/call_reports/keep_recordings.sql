-- Recordings that carriers told of, each once.
INSERT INTO call_recordings (attempt_id, ref)
SELECT * FROM unnest($1::uuid[], $2::text[])
ORDER BY 1, 2
ON CONFLICT DO NOTHING
