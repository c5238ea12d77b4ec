-- Calls that their pods name: an agent has taken the stream.
UPDATE allocations SET joined_at = clock_timestamp()
WHERE call = ANY($2::text[]) AND pod = $1 AND joined_at IS NULL AND ended_at IS NULL
