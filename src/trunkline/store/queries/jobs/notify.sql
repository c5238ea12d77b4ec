-- Wake the workers. Alone in its transaction, which therefore waits for nobody and writes nothing to disk.
SELECT pg_notify($1, $2)
