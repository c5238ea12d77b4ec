-- When leads are no longer to be called: past a moment that their sender named, or because another system called them.
ALTER TABLE leads
    -- From then on nobody calls it: it ends as EXPIRED. NULL: it waits for as long as it takes.
    ADD COLUMN expires_at timestamptz;
CREATE INDEX leads_expiring ON leads (expires_at) WHERE status = 'BACKLOG' AND expires_at IS NOT NULL;
