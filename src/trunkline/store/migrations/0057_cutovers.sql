-- Merchants whose leads another system has called, and since when this platform calls them.

-- The number that `control_versions.flags` had after its last change: of two who edit what both have read, the second is refused.
ALTER TABLE flags ADD COLUMN version bigint NOT NULL DEFAULT 0;
UPDATE flags SET version = (SELECT greatest(v.flags, 1) FROM control_versions AS v);

-- A row from when `event_dispatch` is turned on for a merchant until all of its leads that were due before have ended: the other
-- system has called them, and no intent takes one. Written in the transaction of the flag, so nobody sees one without the other.
CREATE TABLE cutovers (
    merchant_id  text PRIMARY KEY,
    -- NULL: a hosted flag service says that the other system still calls them.
    since        timestamptz
);
