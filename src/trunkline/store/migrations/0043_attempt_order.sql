-- The order of a lead's attempts. Clocks go back (a failover to a host whose clock is right), and `attempt_no` repeats when an
-- attempt is not counted against its lead: neither says which attempt is the newest.

-- 0: from before this column, or written as not sent without ever having been dialled. Of two such ones the time decides.
ALTER TABLE attempts ADD COLUMN ordinal int NOT NULL DEFAULT 0;

-- Whoever inserts an attempt that may be dialled holds its lead's lock, so the numbers of a lead grow without a gap. A row that
-- only records that a COMMIT was lost has none: a later attempt of the lead must stay the newest.
CREATE FUNCTION attempts_number() RETURNS trigger LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    NEW.ordinal := 1 + coalesce((SELECT max(a.ordinal) FROM attempts AS a WHERE a.lead_id = NEW.lead_id), 0);
    RETURN NEW;
END $$;
CREATE TRIGGER attempts_number BEFORE INSERT ON attempts FOR EACH ROW
WHEN (NEW.lead_id IS NOT NULL AND NEW.state <> 'rejected') EXECUTE FUNCTION attempts_number();

-- The answer gate asks for the newest too. Its function is long and this is one line of it, so it is changed in place.
DO $$
DECLARE
    was text := pg_get_functiondef('allocate_call'::regproc);
    by_clock text := 'n.intent_at > a.intent_at';
BEGIN
    IF strpos(was, by_clock) = 0 THEN RAISE EXCEPTION 'allocate_call does not ask for the newest attempt'; END IF;
    EXECUTE replace(was, by_clock, '(n.ordinal, n.intent_at) > (a.ordinal, a.intent_at)');
END $$;
