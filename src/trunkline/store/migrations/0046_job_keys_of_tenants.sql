-- Unique and concurrency keys belong to the tenant of their job. Two tenants that choose the same word for a key mean two
-- jobs; under one key for all, the second tenant's job was answered with the first one's and never ran.
CREATE UNIQUE INDEX job_outbox_unique_pending_of_tenant ON job_outbox (job_type, unique_key, reseller_id, merchant_id)
    NULLS NOT DISTINCT WHERE status = 'PENDING' AND unique_key IS NOT NULL;
DROP INDEX job_outbox_unique_pending;

-- The platform itself is written as two empty strings: a primary key takes no NULL.
ALTER TABLE job_keys
    ADD COLUMN reseller_id text NOT NULL DEFAULT '',
    ADD COLUMN merchant_id text NOT NULL DEFAULT '',
    DROP CONSTRAINT job_keys_pkey,
    ADD PRIMARY KEY (job_type, key, reseller_id, merchant_id);

DELETE FROM job_keys;
INSERT INTO job_keys (job_type, key, reseller_id, merchant_id, running)
SELECT job_type, concurrency_key, coalesce(reseller_id, ''), coalesce(merchant_id, ''),
       count(*) FILTER (WHERE status = 'IN_PROGRESS')
FROM job_outbox
WHERE concurrency_key IS NOT NULL AND (status = 'IN_PROGRESS' OR parked)
GROUP BY 1, 2, 3, 4;
