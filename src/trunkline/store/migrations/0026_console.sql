-- What the console must not take twice: links that were used, and sessions that were signed out, until they would have
-- ended anyway. Whoever is not here was never spent.
CREATE TABLE console_spent (
    id     uuid PRIMARY KEY,
    until  timestamptz NOT NULL
);
CREATE INDEX console_spent_by_end ON console_spent (until);
