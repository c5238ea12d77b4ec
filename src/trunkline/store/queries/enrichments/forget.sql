-- Forget items whose files are gone, unless they were changed meanwhile.
DELETE FROM call_enrichments
WHERE item_id = ANY($1::text[]) AND updated_at < now() - make_interval(secs => $2)
