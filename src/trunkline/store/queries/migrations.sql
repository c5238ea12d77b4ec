-- name: applied
-- Every migration that was begun here.
SELECT number, name, checksum, begun_at, applied_at FROM schema_migrations ORDER BY number

-- name: begin
-- Remember that a migration outside a transaction was begun; and since when, if that was before.
INSERT INTO schema_migrations AS m (number, name, checksum) VALUES ($1, $2, $3)
ON CONFLICT (number) DO UPDATE SET name = excluded.name, checksum = excluded.checksum
RETURNING CASE WHEN xmax <> 0 THEN begun_at END

-- name: create_schema
-- A library's own, in an application's database. The name is quoted by the caller: no parameter can stand here.
CREATE SCHEMA {schema}

-- name: create_table
-- What has been applied. The checksum shows a file that was edited afterwards. `applied_at` is NULL while a file that runs
-- outside a transaction has not ended.
CREATE TABLE IF NOT EXISTS schema_migrations (
    number      int PRIMARY KEY,
    name        text NOT NULL,
    checksum    text NOT NULL,
    begun_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    applied_at  timestamptz
)

-- name: finish
-- A migration outside a transaction has ended.
UPDATE schema_migrations SET applied_at = clock_timestamp() WHERE number = $1

-- name: has_schema
-- IF NOT EXISTS would ask for the right to create one even where it is there.
SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)

-- name: holders
-- Transactions of others that a migration may have waited for.
SELECT pid, application_name, usename FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
  AND application_name <> 'trunkline migrate'
ORDER BY xact_start
LIMIT 3

-- name: invalid_indexes
-- What CREATE INDEX CONCURRENTLY leaves when it breaks off, in the schema that tables are made in. NULL: none.
SELECT array_agg(i.indexrelid::regclass::text ORDER BY 1)
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
WHERE NOT i.indisvalid AND c.relkind = 'i' AND c.relnamespace = to_regnamespace(quote_ident(current_schema()))

-- name: layout
-- Whose table of migrations is found here: none, ours, that of versions before the first release, or another program's.
SELECT CASE WHEN to_regclass('schema_migrations') IS NULL THEN 'none'
            WHEN 'number' = ANY (names) THEN 'ours'
            WHEN 'checksum' = ANY (names) THEN 'before'
            ELSE 'other' END
FROM (SELECT array_agg(attname::text) AS names FROM pg_attribute
      WHERE attrelid = to_regclass('schema_migrations') AND attnum > 0 AND NOT attisdropped) AS columns

-- name: hides_platform
-- Would tables in schema $1 be found before those of a platform by every connection of this role, the platform's too? "$user" on
-- the search path stands for the schema that has the role's name.
SELECT $1 = current_user AND current_setting('search_path') LIKE '%"$user"%' AND to_regclass('resellers') IS NOT NULL

-- name: library_before
-- Did the mailbox library make its tables on the search path, as it did before it had a schema of its own? A platform,
-- which has tenants too, is none of its business.
SELECT to_regclass('public.schema_migrations') IS NOT NULL AND to_regclass('public.mailboxes') IS NOT NULL
   AND to_regclass('public.resellers') IS NULL

-- name: record
-- Remember a migration in the transaction that applied it.
INSERT INTO schema_migrations (number, name, checksum, applied_at) VALUES ($1, $2, $3, clock_timestamp())

-- name: search_path
-- As the role, its database or its URL have it.
SELECT current_setting('search_path')

-- name: stay_open
-- The transaction that holds the lock does nothing else for as long as others migrate.
SELECT set_config('idle_in_transaction_session_timeout', '0', true), set_config('transaction_timeout', '0', true)

-- name: time_outs
-- How long a migration waits for a lock, in milliseconds; what it then does takes as long as it takes. $2 for this transaction only
SELECT set_config('lock_timeout', $1, $2), set_config('statement_timeout', '0', $2), set_config('transaction_timeout', '0', $2)

-- name: try_lock
-- One process migrates a database at a time. The number is arbitrary; it only has to be ours.
SELECT pg_try_advisory_xact_lock(7285406293)

-- name: use_path
-- $2 for this transaction only: behind a pooler a session has other users.
SELECT set_config('search_path', $1, $2)
