-- A carrier asked an account to slow down: it starts nothing before then. A transaction of its own, and this the only row.
INSERT INTO paces AS p (kind, subject, next_start_at)
VALUES ('account', $1, clock_timestamp() + make_interval(secs => $2))
ON CONFLICT (kind, subject) DO UPDATE SET next_start_at = greatest(p.next_start_at, EXCLUDED.next_start_at)
