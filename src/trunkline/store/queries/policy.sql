-- name: lock
-- For a transaction that reads a layer and writes it back: a row lock is not enough, the layer may not exist yet. Readers pass.
LOCK TABLE policies IN SHARE ROW EXCLUSIVE MODE

-- name: packs_named
-- Every pack that some layer of policy names.
SELECT DISTINCT named.pack
FROM policies AS p, jsonb_array_elements_text(CASE jsonb_typeof(p.policy -> 'packs') WHEN 'array' THEN p.policy -> 'packs' END)
    AS named (pack)
ORDER BY 1

-- name: put
-- Replace a layer. Versions only grow, also past a removal: a cached version must not be taken for the new one.
INSERT INTO policies AS p (scope, subject, policy, version, reseller_id, merchant_id, updated_by)
VALUES ($1, $2, $3, extract(epoch FROM clock_timestamp())::int, $4, $5, $6)
ON CONFLICT (scope, subject) DO UPDATE
SET policy = EXCLUDED.policy, version = greatest(p.version + 1, EXCLUDED.version), updated_at = clock_timestamp(),
    updated_by = EXCLUDED.updated_by
RETURNING p.*

-- name: read
-- Some layers of policies.
SELECT p.scope, p.subject, p.policy, p.version, p.updated_at, p.updated_by
FROM policies AS p
JOIN unnest($1::text[], $2::text[]) AS k (scope, subject) ON k.scope = p.scope AND k.subject = p.subject

-- name: remove
-- An empty layer.
DELETE FROM policies WHERE scope = $1 AND subject = $2 RETURNING scope

-- name: wake
-- Leads that were deferred until a window opens are due now: the window may have changed, and the gate judges again. Only
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
