-- Leads that wait because their last call seemed to have no agent, and that had one: its report came late. They are as if that
-- call were going on, so that its end can be decided again. The new version makes every entry and grant of the retry stale.
UPDATE leads
SET status = 'PROCESSING', attempt_count = attempt_count + 1, no_agent_count = no_agent_count - 1, version = version + 1,
    updated_at = clock_timestamp()
WHERE id = ANY($1::uuid[]) AND status = 'BACKLOG' AND no_agent_count > 0
