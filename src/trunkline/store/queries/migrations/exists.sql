-- Has this database ever been migrated?
SELECT to_regclass('schema_migrations') IS NOT NULL
