-- Give a lease up at shutdown, so that the next leader need not wait for it to run out.
UPDATE leaders SET holder = NULL, expires_at = '-infinity' WHERE name = $1 AND holder = $2 AND term = $3
