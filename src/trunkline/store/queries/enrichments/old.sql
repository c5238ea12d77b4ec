-- Items past their age, oldest first, with the files that go with them.
SELECT item_id, recording_ref
FROM call_enrichments
WHERE updated_at < now() - make_interval(secs => $1)
ORDER BY updated_at
LIMIT $2
