-- Whose call an item is about, so that what was found can be read with the call. Items may also be about no call of ours.
ALTER TABLE call_enrichments ADD COLUMN attempt_id uuid REFERENCES attempts (id) ON DELETE CASCADE;
UPDATE call_enrichments AS e SET attempt_id = a.id FROM attempts AS a WHERE a.id::text = e.item_id;
CREATE INDEX call_enrichments_by_attempt ON call_enrichments (attempt_id) WHERE attempt_id IS NOT NULL;
