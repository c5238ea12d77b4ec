-- A series goes on until its last occurrence has ended, not until that has become a lead: then there is no next one to make,
-- and it is still ACTIVE.
ALTER TABLE reminders DROP CONSTRAINT reminders_check1;
ALTER TABLE reminders ADD CONSTRAINT reminders_next_while_active CHECK (next_at IS NULL OR status = 'ACTIVE');
CREATE INDEX reminders_ending ON reminders (id) WHERE status = 'ACTIVE' AND next_at IS NULL;

-- What is about to ring of a series, without reading all that has rung.
CREATE INDEX reminder_occurrences_open_by_reminder ON reminder_occurrences (reminder_id)
    WHERE state IN ('SCHEDULED', 'PROCESSING', 'PENDING_RETRY');

-- Attempts that were written to the log, and how many of them were followed by a retry: those that a carrier refused too, which
-- `attempt_count` does not count.
ALTER TABLE reminder_occurrences
    ADD COLUMN attempts_told smallint NOT NULL DEFAULT 0,
    ADD COLUMN retries_told smallint NOT NULL DEFAULT 0;
UPDATE reminder_occurrences SET attempts_told = attempt_count, retries_told = attempt_count
WHERE state IN ('SCHEDULED', 'PROCESSING', 'PENDING_RETRY');
