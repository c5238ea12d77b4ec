-- Leads that were set aside until a window opens are due now: the window may have changed, and the gate looks again. Only
-- those whose due time is still the one that the window gave them.
WITH waiting AS (
    SELECT l.id
    FROM decisions AS d
    JOIN leads AS l ON l.id = d.lead_id
    WHERE d.reason = 'window' AND ($2::text IS NULL OR d.merchant_id = $2)
      AND ($1::text IS NULL OR l.reseller_id = $1)
      AND l.status = 'BACKLOG' AND l.due_at = d.until AND l.due_at > clock_timestamp()
    ORDER BY l.id
    LIMIT $3
    FOR NO KEY UPDATE OF l SKIP LOCKED
), woken AS (
    UPDATE leads AS l
    SET due_at = clock_timestamp(), closes_at = NULL, version = version + 1, updated_at = clock_timestamp()
    FROM waiting AS w
    WHERE l.id = w.id
    RETURNING l.id
)
SELECT count(*) FROM woken
