-- Whether a call has gone into a later turn than this one, so that whoever had it before ends nothing.
SELECT EXISTS (SELECT FROM allocations WHERE call = $1 AND turn > $2 AND ended_at IS NULL)
