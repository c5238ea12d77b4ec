-- The next numbers of each pool, after the given one and round to it again, each with some channels that nobody holds. A
-- number that is stopped, resting or not active has none. Nothing is locked: the index of channels decides.
-- At most 64 channels of a number are looked at; of more than that, as many in a row from anywhere, so that each is found
-- some time. Filters come after the limit: how many numbers are read depends on nothing but $3. The orders, and keys
-- that are compared instead of equal, leave one index each: others seem as good while the tables are small.
-- $1 pools  $2 the last number of each  $3 numbers of each pool  $4 channels of each number
-- $5 numbers set aside  $6 numbers whose accounts rest
WITH resting AS MATERIALIZED (
    SELECT r.carrier, r.account FROM unnest($6::uuid[]) AS of (id)
    CROSS JOIN LATERAL (SELECT carrier, account FROM numbers WHERE id >= of.id AND id <= of.id ORDER BY id LIMIT 1) AS r
)
SELECT p.pool_id, n.id AS number_id,
       CASE WHEN n.status = 'active' AND n.id <> ALL($5::uuid[])
                 AND NOT EXISTS (SELECT FROM resting AS r WHERE r.carrier = n.carrier AND r.account = n.account)
                 AND NOT EXISTS (SELECT FROM controls AS c WHERE c.scope = 'number' AND c.subject = n.id::text
                                   AND (c.ends_at IS NULL OR c.ends_at > clock_timestamp()))
                 AND NOT EXISTS (SELECT FROM controls AS c WHERE c.scope = 'carrier' AND c.subject = n.carrier
                                   AND (c.ends_at IS NULL OR c.ends_at > clock_timestamp()))
            THEN ARRAY(SELECT line.no
                       FROM generate_series(n.first_no, least(n.first_no + 63, n.max_channels)) AS line (no)
                       WHERE line.no <> ALL(ARRAY(
                           SELECT a.channel_no FROM attempts AS a
                           WHERE a.number_id = n.id AND a.holds_channel
                             AND a.channel_no BETWEEN n.first_no AND n.first_no + 63
                           ORDER BY a.number_id, a.channel_no))
                       LIMIT $4)
            ELSE '{}' END AS free
FROM unnest($1::text[], $2::uuid[]) AS p (pool_id, last_id)
CROSS JOIN LATERAL (
    SELECT e.*, 1 + floor(random() * greatest(0, e.max_channels - 63))::int AS first_no
    FROM ((SELECT id, carrier, account, status, max_channels FROM numbers
           WHERE (pool_id, id) > (p.pool_id, p.last_id) AND pool_id <= p.pool_id ORDER BY pool_id, id LIMIT $3)
          UNION ALL
          (SELECT id, carrier, account, status, max_channels FROM numbers
           WHERE pool_id >= p.pool_id AND (pool_id, id) <= (p.pool_id, p.last_id) ORDER BY pool_id, id LIMIT $3)) AS e
    ORDER BY e.id <= p.last_id, e.id
    LIMIT $3) AS n
