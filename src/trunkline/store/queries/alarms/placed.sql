-- Did any call reach a carrier in the last minute?
SELECT EXISTS (
    SELECT FROM attempts
    WHERE id >= (SELECT (lpad(to_hex((extract(epoch FROM clock_timestamp() - interval '90 seconds') * 1000)::bigint), 12, '0')
                 || '70008000000000000000')::uuid)
      AND send_at > clock_timestamp() - interval '1 minute'
      AND direction = 'outbound' AND state NOT IN ('dialing', 'rejected'))
