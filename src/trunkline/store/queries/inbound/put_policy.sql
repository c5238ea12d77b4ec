-- Decide it, or decide it anew.
INSERT INTO inbound_policies (number_id, admits, whitelist, merchant_id, otherwise, message, redirect_to)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (number_id) DO UPDATE SET
    admits = excluded.admits, whitelist = excluded.whitelist, merchant_id = excluded.merchant_id,
    otherwise = excluded.otherwise, message = excluded.message, redirect_to = excluded.redirect_to,
    updated_at = clock_timestamp()
RETURNING *
