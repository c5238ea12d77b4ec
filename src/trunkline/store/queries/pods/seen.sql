-- What is known of these pods that the cluster tells of.
SELECT name, uid, past_uid, is_ready, leaving_since IS NOT NULL AS is_leaving, ip, port, version, boot_id, sequence
FROM pods WHERE name = ANY($1::text[])
