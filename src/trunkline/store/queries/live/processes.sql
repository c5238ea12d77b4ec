-- Who runs, with which roles, and since when nothing was heard of them; and which of them leads. Names end in a slash and
-- eight random characters, other ones for the process than for its lease.
SELECT p.id, p.roles, p.started_at, extract(epoch FROM clock_timestamp() - p.seen_at)::float8 AS silent_s,
       EXISTS (SELECT FROM leaders AS l
               WHERE l.expires_at > clock_timestamp() AND left(l.holder, -9) = left(p.id, -9)) AS is_leader
FROM processes AS p
ORDER BY p.id
LIMIT $1
