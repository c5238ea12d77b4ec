-- Second step: the limits, in one order for everybody, so that nobody waits for somebody who waits for him. First their
-- names, by advisory locks of the transaction, as the caller has sorted them: persons, merchants, campaigns
-- and accounts. Then the numbers, by id, against a change of `max_channels` until the commit: shared, unless a call
-- sits above the maximum of one of them; then the calls have to be counted, and one intent at a time may do that.
-- Each part reads from the one before it, which is what makes Postgres run them in this order.
-- Nothing may be counted here: this statement's snapshot is older than its locks.
-- $1 keys of names, in order  $2 numbers
WITH named AS MATERIALIZED (
    SELECT count(taken.lock) AS locks
    FROM (SELECT pg_advisory_xact_lock(k.key)::text AS lock
          FROM (SELECT key FROM unnest($1::bigint[]) WITH ORDINALITY AS k (key, nth) ORDER BY nth) AS k) AS taken
), crowded AS MATERIALIZED (
    -- The highest channel in use is the first of its index; any other way of asking can be planned as a walk over all calls.
    SELECT EXISTS (SELECT FROM numbers AS n CROSS JOIN LATERAL (
                       SELECT a.channel_no FROM attempts AS a
                       WHERE a.number_id = n.id AND a.holds_channel ORDER BY a.channel_no DESC LIMIT 1) AS highest
                   WHERE n.id = ANY($2::uuid[]) AND highest.channel_no > n.max_channels) AS yes
    FROM named WHERE named.locks >= 0
), shared AS MATERIALIZED (
    SELECT n.id, n.e164, n.carrier, n.account, n.max_channels, n.starts_per_s, n.status, n.pool_id, false AS may_count
    FROM crowded CROSS JOIN numbers AS n
    WHERE NOT crowded.yes AND n.id = ANY($2::uuid[])
    ORDER BY n.id FOR SHARE OF n
), alone AS MATERIALIZED (
    SELECT n.id, n.e164, n.carrier, n.account, n.max_channels, n.starts_per_s, n.status, n.pool_id, true AS may_count
    FROM crowded CROSS JOIN numbers AS n
    WHERE crowded.yes AND n.id = ANY($2::uuid[])
    ORDER BY n.id FOR NO KEY UPDATE OF n
)
SELECT * FROM shared UNION ALL SELECT * FROM alone
