-- Leads of a series whose occurrences have not ended, or of one occurrence.
SELECT o.id, o.lead_id, o.wall_at FROM reminder_occurrences AS o
WHERE o.reminder_id = $1 AND o.lead_id IS NOT NULL AND ($2::timestamp IS NULL OR o.wall_at = $2)
  AND o.state IN ('SCHEDULED', 'PROCESSING', 'PENDING_RETRY')
ORDER BY o.lead_id
