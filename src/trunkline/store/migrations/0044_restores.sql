-- Each time that Postgres was found at an earlier moment than it had been. While one is not settled, calls may have been
-- placed that this database does not know, and the kill switch is not lifted.
CREATE TABLE restores (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    found_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The last moment that the database, as it was found, had lived through.
    backup_at   timestamptz NOT NULL,
    reason      text NOT NULL,
    settled_at  timestamptz,
    settled_by  text,
    CHECK ((settled_at IS NULL) = (settled_by IS NULL))
);
