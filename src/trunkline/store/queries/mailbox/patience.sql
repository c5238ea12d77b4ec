-- How long the statements of this transaction wait for a lock, in milliseconds.
SELECT set_config('lock_timeout', $1::text, true)
