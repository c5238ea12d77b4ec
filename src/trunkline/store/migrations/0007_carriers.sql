-- Accounts at carriers, and what becomes of calls that come in.

-- Credentials are sealed under TRUNKLINE_SECRET_KEY and name their account inside: nothing here opens one by itself.
CREATE TABLE carrier_accounts (
    id            uuid PRIMARY KEY,
    carrier       text NOT NULL CHECK (carrier ~ '^[a-z][a-z0-9_-]{0,31}$'),
    name          text NOT NULL CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$'),
    credentials   bytea NOT NULL,
    base_url      text,
    starts_per_s  double precision CHECK (starts_per_s > 0),
    status        text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'disabled')),
    version       int NOT NULL DEFAULT 1,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT carrier_accounts_once UNIQUE (carrier, name)
);
CREATE INDEX numbers_by_account ON numbers (carrier, account);

-- Who is taken when a number is called, and what the others get. Without a row everybody is taken while a channel is
-- free. No foreign key names the number: the dial locks number rows, and a key's share lock would stand in its way.
CREATE TABLE inbound_policies (
    number_id    uuid PRIMARY KEY,
    admits       text NOT NULL CHECK (admits IN ('everybody', 'whitelist', 'nobody')),
    whitelist    text[] NOT NULL DEFAULT '{}',
    -- Whose call it is on a number that several merchants share.
    merchant_id  text REFERENCES merchants (id),
    otherwise    text NOT NULL CHECK (otherwise IN ('reject', 'message', 'redirect')),
    message      text CHECK (length(message) BETWEEN 1 AND 500),
    redirect_to  text CHECK (redirect_to ~ '^\+[1-9][0-9]{6,14}$'),
    updated_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK ((otherwise = 'redirect') = (redirect_to IS NOT NULL)),
    CHECK ((otherwise = 'message') = (message IS NOT NULL))
);

-- A call that came in and was refused never had a channel.
ALTER TABLE attempts ALTER COLUMN channel_no DROP NOT NULL;
ALTER TABLE attempts ADD CONSTRAINT attempts_held_channel_is_numbered CHECK (channel_no IS NOT NULL OR NOT holds_channel);
