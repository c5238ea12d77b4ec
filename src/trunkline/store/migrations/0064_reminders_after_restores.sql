-- An occurrence that was due before a restore which is settled may have rung in the time that the database has lost. Nobody compares
-- it with the carriers' lists any more: it is skipped.
ALTER TABLE reminder_occurrences DROP CONSTRAINT reminder_occurrences_skip_reason_check;
ALTER TABLE reminder_occurrences ADD CONSTRAINT reminder_occurrences_skip_reason_check
    CHECK (skip_reason IN ('asked', 'missed', 'paused', 'cancelled', 'restored'));
