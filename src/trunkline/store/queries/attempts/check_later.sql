-- Nothing to do yet: look again at a later moment, counted from now.
UPDATE attempts AS a
SET next_check_at = clock_timestamp() + make_interval(secs => c.delay_s), doubt_checks = a.doubt_checks + c.checked
FROM unnest($1::uuid[], $2::float8[], $3::smallint[]) AS c (id, delay_s, checked)
WHERE a.id = c.id
