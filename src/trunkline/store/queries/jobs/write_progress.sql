-- What running jobs said last. Of a job that has another owner by now nothing is taken.
INSERT INTO job_progress (job_id, fraction, note)
SELECT o.id, p.fraction, p.note
FROM unnest($1::uuid[], $2::bigint[], $3::real[], $4::text[]) AS p (id, fence, fraction, note)
JOIN job_outbox AS o ON o.id = p.id AND o.fence = p.fence
ORDER BY o.id
ON CONFLICT (job_id) DO UPDATE SET fraction = excluded.fraction, note = excluded.note, updated_at = now()
