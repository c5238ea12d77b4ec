-- Raise an alarm, or say that it is still so. One that was said within the last second is left alone: a hundred
-- transactions with the same complaint must not queue up behind one row.
INSERT INTO alarms AS a (id, name, subject, severity, detail, reseller_id, merchant_id)
SELECT $1, $2, $3, $4, $5, $6, $7
WHERE NOT EXISTS (
    SELECT FROM alarms
    WHERE name = $2 AND subject = $3 AND cleared_at IS NULL AND seen_at > clock_timestamp() - interval '1 second')
ON CONFLICT (name, subject) WHERE cleared_at IS NULL
DO UPDATE SET seen_at = clock_timestamp(), detail = excluded.detail
RETURNING id
