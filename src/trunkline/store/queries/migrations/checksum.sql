-- The checksum under which a migration was applied; no row if it was not.
SELECT checksum FROM schema_migrations WHERE name = $1
