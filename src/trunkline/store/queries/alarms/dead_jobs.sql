-- Dead letters by type of job: they wait for somebody to replay or remove them. Counted up to a thousand.
SELECT job_type AS subject, count(*)::float8 AS value
FROM (SELECT job_type FROM job_dead LIMIT 1000) AS dead
GROUP BY 1
