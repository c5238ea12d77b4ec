-- name: add
-- Put phones on a list. One that is on it already gets the new reason and end; `is_new` distinguishes them.
-- $1 ids  $2 phones  $3 reseller  $4 merchant  $5 reason  $6 end  $7 actor
WITH existing AS MATERIALIZED (
    SELECT phone FROM do_not_call
    WHERE phone = ANY($2::text[]) AND coalesce(reseller_id, '') = coalesce($3, '')
      AND coalesce(merchant_id, '') = coalesce($4, '')
), added AS (
    INSERT INTO do_not_call AS d (id, phone, reseller_id, merchant_id, reason, expires_at, created_by)
    SELECT n.id, n.phone, $3, $4, $5, $6, $7
    FROM unnest($1::uuid[], $2::text[]) AS n (id, phone)
    ORDER BY n.phone
    ON CONFLICT (phone, coalesce(reseller_id, ''), coalesce(merchant_id, '')) DO UPDATE
    SET reason = EXCLUDED.reason, expires_at = EXCLUDED.expires_at
    RETURNING d.*
)
SELECT a.*, k.phone IS NULL AS is_new FROM added AS a LEFT JOIN existing AS k ON k.phone = a.phone

-- name: get
-- One entry, if it is the tenant's own or below it.
SELECT * FROM do_not_call
WHERE id = $3 AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)

-- name: list
-- A tenant's own entries and those below it, newest first.
SELECT * FROM do_not_call
WHERE id < $3::uuid AND ($1::text IS NULL OR reseller_id = $1) AND ($2::text IS NULL OR merchant_id = $2)
  AND ($5::text IS NULL OR phone = $5)
ORDER BY id DESC
LIMIT $4

-- name: remove
-- The person may be called again.
DELETE FROM do_not_call WHERE id = $1
