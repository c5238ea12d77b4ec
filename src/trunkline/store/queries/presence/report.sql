-- This process is here.
INSERT INTO processes (id, roles) VALUES ($1, $2)
ON CONFLICT (id) DO UPDATE SET roles = excluded.roles, seen_at = clock_timestamp()
