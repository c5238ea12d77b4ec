-- What time it is. Postgres decides what is due; every other clock is compared with this one.
SELECT extract(epoch FROM clock_timestamp())::float8
