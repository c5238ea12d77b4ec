-- Items to be enriched. Those that are known stay as they are.
INSERT INTO call_enrichments (item_id, attempt_id, reseller_id, merchant_id, source)
SELECT * FROM unnest($1::text[], $2::uuid[], $3::text[], $4::text[], $5::text[]) AS new (item_id)
ORDER BY new.item_id
ON CONFLICT DO NOTHING
RETURNING item_id
