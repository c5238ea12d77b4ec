-- Which addresses of pods changed since somebody last looked. Incarnations do not say it: of two that are given at once the lower one
-- may be committed later, and a heartbeat may change the address of a process that is known already.

ALTER TABLE pods
    -- The transaction that last gave the pod a number or an address. Whoever read before it was committed saw it running: it
    -- is not below that snapshot's oldest running transaction.
    ADD COLUMN addressed_xid xid8 NOT NULL DEFAULT pg_current_xact_id();
CREATE INDEX pods_by_addressed_xid ON pods (addressed_xid);

-- Here and not in the statements, of which five change an address: none of them can forget it. Heartbeats that change nothing of
-- it do not come here, and stay on their page.
CREATE FUNCTION pods_note_address() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.addressed_xid := pg_current_xact_id();
    RETURN NEW;
END $$;
CREATE TRIGGER pods_note_address BEFORE UPDATE ON pods FOR EACH ROW
    WHEN ((OLD.incarnation, OLD.base_url, OLD.ip, OLD.port) IS DISTINCT FROM (NEW.incarnation, NEW.base_url, NEW.ip, NEW.port))
    EXECUTE FUNCTION pods_note_address();
