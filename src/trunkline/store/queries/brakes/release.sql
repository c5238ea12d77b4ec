-- A call of these merchants that began after their dials were stopped had its agent: all may be dialled again.
UPDATE no_agent_brakes AS b
SET stops_until = NULL, counts_from = clock_timestamp()
FROM (SELECT merchant_id FROM no_agent_brakes
      WHERE merchant_id = ANY($1::text[]) AND stops_until <= clock_timestamp()
      ORDER BY merchant_id FOR NO KEY UPDATE) AS held
WHERE b.merchant_id = held.merchant_id
RETURNING b.merchant_id
