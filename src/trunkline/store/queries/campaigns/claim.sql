-- One of them, until the transaction ends; no row if somebody else sees to it.
SELECT *, clock_timestamp() AS now FROM campaigns WHERE id = $1 AND status <> 'STOPPED' FOR NO KEY UPDATE SKIP LOCKED
