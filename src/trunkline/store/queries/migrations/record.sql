-- Remember a migration in the transaction that applied it.
INSERT INTO schema_migrations (name, checksum) VALUES ($1, $2)
