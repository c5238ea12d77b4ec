-- name: applied
-- Every migration this database has.
SELECT name FROM schema_migrations

-- name: checksum
-- The checksum under which a migration was applied; no row if it was not.
SELECT checksum FROM schema_migrations WHERE name = $1

-- name: checksums
-- Every migration of this schema, and the checksum under which it was applied.
SELECT name, checksum FROM schema_migrations

-- name: create_schema
-- A library's own, in somebody else's database. The name is quoted by the caller: no parameter can stand here.
CREATE SCHEMA {schema}

-- name: create_table
-- What has been applied. The checksum shows a file that was edited afterwards.
CREATE TABLE IF NOT EXISTS schema_migrations (
    name        text PRIMARY KEY,
    checksum    text NOT NULL,
    applied_at  timestamptz NOT NULL DEFAULT now()
)

-- name: exists
-- Has this database ever been migrated?
SELECT to_regclass('schema_migrations') IS NOT NULL

-- name: has_schema
-- IF NOT EXISTS would ask for the right to create one even where it is there.
SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)

-- name: library_before
-- Did the mailbox library make its tables on the search path, as it did before it had a schema of its own? A platform,
-- which has tenants too, is none of its business.
SELECT to_regclass('public.schema_migrations') IS NOT NULL AND to_regclass('public.mailboxes') IS NOT NULL
   AND to_regclass('public.resellers') IS NULL

-- name: lock
-- One migration runs at a time in a database. The number is arbitrary; it only has to be ours.
SELECT pg_advisory_xact_lock(7285406293)

-- name: record
-- Remember a migration in the transaction that applied it.
INSERT INTO schema_migrations (name, checksum) VALUES ($1, $2)

-- name: search_path
-- As the role, its database or its URL have it.
SELECT current_setting('search_path')
