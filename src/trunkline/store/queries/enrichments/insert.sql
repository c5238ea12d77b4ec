-- An item to be enriched. One that is known stays as it is.
INSERT INTO call_enrichments (item_id, reseller_id, merchant_id, source) VALUES ($1, $2, $3, $4)
ON CONFLICT DO NOTHING
RETURNING item_id
