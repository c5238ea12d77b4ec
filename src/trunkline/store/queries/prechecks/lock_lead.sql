-- The lead that did not pass, if it is still the one that was asked about.
SELECT id, clock_timestamp() AS now FROM leads WHERE id = $1 AND version = $2 AND status = 'BACKLOG' FOR NO KEY UPDATE
