-- What stops a tenant or somebody below it, by scope and subject: its own, its reseller's, the platform's.
SELECT *, clock_timestamp() AS seen_at FROM controls
WHERE concat_ws(' ', scope, subject, set_by) > $3
  AND (ends_at IS NULL OR ends_at + make_interval(secs => ramp_s) > clock_timestamp())
  AND ($1::text IS NULL OR reseller_id IS NULL
       OR (reseller_id = $1 AND ($2::text IS NULL OR merchant_id IS NULL OR merchant_id = $2)))
  AND ($4::text IS NULL OR scope = $4)
ORDER BY concat_ws(' ', scope, subject, set_by)
LIMIT $5
