-- name: alive
-- Processes with a heartbeat within $1 seconds, by role. A role that recently had some and has none is 0.
SELECT role, count(*) FILTER (WHERE seen_at > clock_timestamp() - make_interval(secs => $1)) AS alive
FROM processes CROSS JOIN unnest(roles) AS role
GROUP BY role

-- name: measure
-- What a process counted since its last report, added to what the others counted in this minute, or the greatest value of a
-- gauge that any of them has seen in it ({value}). Rows in their order: two processes that write the same ones must not wait
-- for each other.
INSERT INTO measures AS m (minute, name, subject, value)
SELECT date_trunc('minute', clock_timestamp()), name, subject, value
FROM unnest($1::text[], $2::text[], $3::float8[]) AS measured (name, subject, value)
ORDER BY name, subject
ON CONFLICT (minute, name, subject) DO UPDATE SET value = {value}

-- name: forget_old
-- Processes without a heartbeat for an hour.
DELETE FROM processes WHERE seen_at < clock_timestamp() - interval '1 hour'

-- name: forget_old_measures
-- Measures are read for the last 15 minutes.
DELETE FROM measures WHERE minute < clock_timestamp() - interval '1 hour'

-- name: leadership
-- Is there a leader, and if not: did the last one resign, as a planned stop does, or did its lease expire?
SELECT coalesce(bool_or(holder IS NOT NULL AND expires_at > clock_timestamp()), false) AS is_led,
       coalesce(bool_or(holder IS NULL), true) AS has_resigned
FROM leaders WHERE name = $1

-- name: leave
-- This process stops on purpose.
DELETE FROM processes WHERE id = $1

-- name: losses
-- By role: the processes with a heartbeat within $1 seconds, and those that fell silent in the last ten minutes without a
-- planned stop, less those that were started since to replace them.
WITH roles AS (
    SELECT role, p.seen_at, p.started_at, p.seen_at > clock_timestamp() - make_interval(secs => $1) AS is_alive
    FROM processes AS p CROSS JOIN unnest(p.roles) AS role
    WHERE p.seen_at > clock_timestamp() - interval '10 minutes'
), silent AS (
    SELECT role, min(seen_at) AS since, count(*) AS processes FROM roles WHERE NOT is_alive GROUP BY role
)
SELECT r.role, count(*) FILTER (WHERE r.is_alive)::int AS alive,
       greatest(0, coalesce(max(s.processes), 0) - count(*) FILTER (WHERE r.is_alive AND r.started_at > s.since))::int AS lost
FROM roles AS r LEFT JOIN silent AS s ON s.role = r.role
GROUP BY r.role

-- name: measured
-- The measures of the last $1 minutes, the present one included.
SELECT name, subject, extract(epoch FROM date_trunc('minute', clock_timestamp()) - minute)::int / 60 AS minutes_ago, value
FROM measures
WHERE minute > clock_timestamp() - make_interval(mins => $1)

-- name: report
-- The heartbeat of this process.
INSERT INTO processes (id, roles) VALUES ($1, $2)
ON CONFLICT (id) DO UPDATE SET roles = excluded.roles, seen_at = clock_timestamp()
