-- What could not be written while it lasted.
INSERT INTO alarms (id, name, subject, severity, detail, raised_at, cleared_at, cleared_by)
VALUES ($1, $2, $3, $4, $5, clock_timestamp() - make_interval(secs => $6), clock_timestamp(), 'system')
