CREATE TABLE IF NOT EXISTS issues (
    key          text PRIMARY KEY,
    title        text NOT NULL,
    body         text NOT NULL,
    author       text NOT NULL,
    state        text NOT NULL,
    labels       text[] NOT NULL,
    -- Written by one worker at a time: whoever has the mailbox in hand.
    discussions  jsonb NOT NULL,
    updated_at   timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE IF NOT EXISTS replies (
    key         text NOT NULL,
    -- The last event that it answers.
    upto        bigint NOT NULL,
    body        text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    posted_at   timestamptz,
    PRIMARY KEY (key, upto)
);
