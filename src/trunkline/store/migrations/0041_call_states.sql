-- What an agent stores of its call while it has it: another agent goes on from there if the first is lost. It goes with the
-- call's attempt.
CREATE TABLE call_states (
    attempt_id  uuid PRIMARY KEY REFERENCES attempts (id) ON DELETE CASCADE,
    -- Of the agent that stored it: how often the call had been given another one before.
    turn        smallint NOT NULL,
    state       jsonb NOT NULL,
    saved_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Which of the call's agents reported. The report of a later one takes the place of an earlier one's.
ALTER TABLE call_reports ADD COLUMN turn smallint NOT NULL DEFAULT 0;
