-- What became of occurrences, as their leads tell.
UPDATE reminder_occurrences AS o
SET state = s.state, lead_version = s.lead_version, attempt_count = s.attempt_count, next_retry_at = s.next_retry_at,
    last_error = s.last_error, idempotency_key = coalesce(s.idempotency_key, o.idempotency_key),
    external_call_id = s.external_call_id, updated_at = clock_timestamp()
FROM unnest($1::uuid[], $2::text[], $3::int[], $4::smallint[], $5::timestamptz[], $6::text[], $7::text[], $8::text[])
     AS s (id, state, lead_version, attempt_count, next_retry_at, last_error, idempotency_key, external_call_id)
WHERE o.id = s.id
