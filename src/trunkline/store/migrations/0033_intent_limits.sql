-- An intent's limits in one round trip: locked, then counted. At READ COMMITTED each statement of a VOLATILE function has a
-- snapshot of its own, so the count has everything that was committed by those we waited for. Counted in the statement of
-- the locks it would not: a statement's snapshot is older than its locks.

-- What every intent counts: calls to persons, the paces, doubts of accounts, and calls above a number's maximum. Live
-- attempts count; what was certainly not placed (rejected, absent) does not. Every row answers one question, by its place
-- in the list of its kind. A single query that is not volatile: it is planned as a part of the query that calls it.
CREATE FUNCTION count_limits(
    in_now timestamptz,
    in_phones text[], in_merchants text[], in_most int[], in_windows_s int[], in_asking text[],
    in_pace_kinds text[], in_pace_subjects text[], in_carriers text[], in_accounts text[], in_numbers uuid[]
) RETURNS TABLE (kind text, which bigint, n bigint, m bigint, at timestamptz, flag boolean)
LANGUAGE sql STABLE AS $$
SELECT 'now', 0::bigint, NULL::bigint, NULL::bigint, in_now, NULL::boolean
UNION ALL
SELECT 'person', q.which, count(c.send_at), NULL, min(c.send_at), coalesce(bool_and(c.own), true)
FROM unnest(in_phones, in_merchants, in_most, in_windows_s, in_asking)
     WITH ORDINALITY AS q (phone, merchant_id, max_calls, window_s, asks, which)
LEFT JOIN LATERAL (
    SELECT a.send_at, a.merchant_id = q.asks AS own
    FROM attempts AS a
    WHERE a.to_phone = q.phone AND a.direction = 'outbound'
      AND a.send_at > in_now - make_interval(secs => q.window_s)
      AND a.state NOT IN ('rejected', 'absent') AND q.merchant_id IN ('', a.merchant_id)
    ORDER BY a.send_at DESC LIMIT q.max_calls) AS c ON true
GROUP BY q.which
UNION ALL
SELECT 'pace', q.which, NULL, NULL, p.next_start_at, NULL
FROM unnest(in_pace_kinds, in_pace_subjects) WITH ORDINALITY AS q (kind, subject, which)
CROSS JOIN LATERAL (SELECT next_start_at FROM paces WHERE kind = q.kind AND subject = q.subject LIMIT 1) AS p
UNION ALL
SELECT 'doubt', q.which, doubts.n,
       -- A few doubts are nothing; only beyond them is it worth adding up the account's channels.
       CASE WHEN doubts.n > 3 THEN (SELECT sum(n.max_channels) FROM numbers AS n
                                    WHERE n.carrier = q.carrier AND n.account = q.account) END,
       NULL, NULL
FROM unnest(in_carriers, in_accounts) WITH ORDINALITY AS q (carrier, account, which)
CROSS JOIN LATERAL (SELECT count(*) AS n FROM attempts AS a
                    WHERE a.carrier = q.carrier AND a.account = q.account AND a.state = 'in_doubt') AS doubts
UNION ALL
SELECT 'number', q.which, (SELECT count(*) FROM attempts AS a WHERE a.number_id = q.id AND a.holds_channel),
       NULL, NULL, true
FROM unnest(in_numbers) WITH ORDINALITY AS q (id, which)
JOIN numbers AS n ON n.id = q.id
CROSS JOIN LATERAL (
    SELECT a.channel_no FROM attempts AS a
    WHERE a.number_id = q.id AND a.holds_channel ORDER BY a.channel_no DESC LIMIT 1) AS highest
WHERE highest.channel_no > n.max_channels
$$;

-- The locks come in one order for everybody, so that nobody waits for somebody who waits for him. First names, by advisory
-- locks of the transaction, as the caller has sorted them: persons, merchants, pods and accounts. Then the numbers, by id,
-- against a change of `max_channels` until the commit: shared, unless a call sits above the maximum of one of them; then
-- the calls have to be counted, and one intent at a time may do that.
-- A row of kind 'locked' is a number; its flag says whether its calls may be counted under this lock.
CREATE FUNCTION lock_and_count_limits(
    in_keys bigint[], in_numbers uuid[],
    in_phones text[], in_merchants text[], in_most int[], in_windows_s int[], in_asking text[],
    in_pace_kinds text[], in_pace_subjects text[], in_carriers text[], in_accounts text[]
) RETURNS TABLE (
    kind text, which bigint, n bigint, m bigint, at timestamptz, flag boolean,
    id uuid, e164 text, carrier text, account text, max_channels int, starts_per_s float8, status text, pool_id text
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    is_crowded boolean;
    locked_at timestamptz;
BEGIN
    PERFORM pg_advisory_xact_lock(k.key)
    FROM (SELECT key FROM unnest(in_keys) WITH ORDINALITY AS k (key, nth) ORDER BY nth) AS k;

    -- The highest channel in use is the first of its index; any other way of asking can be planned as a walk over all calls.
    is_crowded := EXISTS (
        SELECT FROM numbers AS n CROSS JOIN LATERAL (
            SELECT a.channel_no FROM attempts AS a
            WHERE a.number_id = n.id AND a.holds_channel ORDER BY a.channel_no DESC LIMIT 1) AS highest
        WHERE n.id = ANY(in_numbers) AND highest.channel_no > n.max_channels);
    IF is_crowded THEN
        RETURN QUERY
        SELECT 'locked', 0::bigint, NULL::bigint, NULL::bigint, NULL::timestamptz, true,
               n.id, n.e164, n.carrier, n.account, n.max_channels, n.starts_per_s, n.status, n.pool_id
        FROM numbers AS n WHERE n.id = ANY(in_numbers) ORDER BY n.id FOR NO KEY UPDATE;
    ELSE
        RETURN QUERY
        SELECT 'locked', 0::bigint, NULL::bigint, NULL::bigint, NULL::timestamptz, false,
               n.id, n.e164, n.carrier, n.account, n.max_channels, n.starts_per_s, n.status, n.pool_id
        FROM numbers AS n WHERE n.id = ANY(in_numbers) ORDER BY n.id FOR SHARE;
    END IF;

    locked_at := clock_timestamp();
    RETURN QUERY
    SELECT c.kind, c.which, c.n, c.m, c.at, c.flag,
           NULL::uuid, NULL, NULL, NULL, NULL::int, NULL::float8, NULL, NULL
    FROM count_limits(locked_at, in_phones, in_merchants, in_most, in_windows_s, in_asking,
                      in_pace_kinds, in_pace_subjects, in_carriers, in_accounts, in_numbers) AS c;
END $$;
