-- Any process notifies the operators' webhook of alarms, itself and not through a job: the role `jobs` may be what is
-- missing. `notify_after`: not before then, because a process is at it, or because the last try failed.
-- `notified_at`: when the webhook last took a notification, so that an alarm that lasts is sent again.
ALTER TABLE alarms
    ADD COLUMN notify_after timestamptz,
    ADD COLUMN notify_failures smallint NOT NULL DEFAULT 0,
    ADD COLUMN notified_at timestamptz;
UPDATE alarms SET notified_at = coalesce(clear_told_at, raise_told_at);
DELETE FROM job_outbox WHERE job_type = 'announce_alarm';
