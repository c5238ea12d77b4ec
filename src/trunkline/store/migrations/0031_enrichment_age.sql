-- For retention: what was found out about calls, oldest first.
CREATE INDEX call_enrichments_by_age ON call_enrichments (updated_at);
