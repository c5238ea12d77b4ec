-- The audit log is asked what somebody did, what was done of a kind, and what was done on a day. Few rows are written here,
-- so that these cost nothing worth counting.
CREATE INDEX audit_log_by_actor ON audit_log (actor, id);
CREATE INDEX audit_log_by_area ON audit_log (split_part(action, '.', 1), id);
CREATE INDEX audit_log_by_time ON audit_log (at);
