-- Is anybody leading?
SELECT EXISTS (SELECT FROM leaders WHERE name = $1 AND holder IS NOT NULL AND expires_at > clock_timestamp())
