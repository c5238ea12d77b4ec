-- Who leads, for status pages.
SELECT name, holder, term, expires_at FROM leaders WHERE expires_at > clock_timestamp() ORDER BY name
