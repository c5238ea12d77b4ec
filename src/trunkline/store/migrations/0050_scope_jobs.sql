-- Keys that may enqueue jobs, and nothing else.
ALTER TABLE api_keys
    DROP CONSTRAINT api_keys_scopes_check,
    ADD CONSTRAINT api_keys_scopes_check
        CHECK (scopes <@ ARRAY['admin', 'leads', 'router', 'read', 'jobs'] AND cardinality(scopes) > 0);
