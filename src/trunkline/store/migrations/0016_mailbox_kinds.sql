-- Kinds of mailboxes that may be appended to over HTTP: whose they are, and what signs the appends of those who have no
-- key. The kind is the unit of ownership: a mailbox belongs to whom its kind belongs, so no two tenants share one.
CREATE TABLE mailbox_kinds (
    kind                text PRIMARY KEY CHECK (kind ~ '^[a-z][a-z0-9_-]{0,62}$'),
    reseller_id         text REFERENCES resellers (id),
    merchant_id         text REFERENCES merchants (id),
    secret_sealed       bytea NOT NULL,
    -- Good too until then, so that senders may change over at their leisure.
    old_secret_sealed   bytea,
    old_secret_until    timestamptz,
    created_at          timestamptz NOT NULL DEFAULT now(),
    CHECK (merchant_id IS NULL OR reseller_id IS NOT NULL)
);
