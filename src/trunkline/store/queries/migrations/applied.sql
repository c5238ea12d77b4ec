-- Every migration this database has.
SELECT name FROM schema_migrations
