-- A new account; no row if its name is taken.
INSERT INTO carrier_accounts (id, carrier, name, credentials, base_url, starts_per_s, status)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (carrier, name) DO NOTHING
RETURNING *
