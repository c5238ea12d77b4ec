-- What fails at the account costs the account: a carrier that refuses calls for our sake is left alone for a while, and then
-- asked with one call at a time.

-- A cooldown is as narrow as the refusal: the account, its calls to one country, one of our numbers, or the account as one
-- process reaches it. A circuit breaker with one probe: while it is open, one attempt at a time goes out, named here.
-- Intents alone name probes, under the account's lock, and read from the attempt what became of the last one. Whoever
-- writes results begins and ends cooldowns in a transaction that touches nothing else: it holds no attempt meanwhile.
CREATE TABLE cooldowns (
    scope          text NOT NULL CHECK (scope IN ('account', 'country', 'number', 'process')),
    -- carrier/account, carrier/account/country, the number's id, process:carrier/account
    subject        text NOT NULL,
    carrier        text NOT NULL,
    account        text NOT NULL,
    -- The carrier's code and the cause in words; `unproven`: nothing was refused, and nobody knows whether it would be.
    code           text NOT NULL,
    why            text NOT NULL DEFAULT '',
    began_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    refused_at     timestamptz,
    -- Not before then the next probe, and not before the last one is decided.
    opens_at       timestamptz NOT NULL,
    probes         int NOT NULL DEFAULT 0,
    probe          uuid,
    -- The carrier takes such calls and fails them later: a probe is taken when it rings.
    needs_ringing  boolean NOT NULL DEFAULT false,
    PRIMARY KEY (scope, subject)
);
CREATE INDEX cooldowns_by_account ON cooldowns (carrier, account);

-- When an account last took a call, to the second; and which leads were refused since, one after the other, with a code that
-- nobody knows.
CREATE TABLE carrier_health (
    carrier           text NOT NULL,
    account           text NOT NULL,
    taken_at          timestamptz,
    unexplained_code  text NOT NULL DEFAULT '',
    unexplained       uuid[] NOT NULL DEFAULT '{}',
    PRIMARY KEY (carrier, account)
);

-- What every intent counts (migration 0033), and beside it cooldowns with their probes, and when accounts last took a call.
DROP FUNCTION lock_and_count_limits(bigint[], uuid[], text[], text[], int[], int[], text[], text[], text[], text[], text[]);
DROP FUNCTION count_limits(timestamptz, text[], text[], int[], int[], text[], text[], text[], text[], text[], uuid[]);
CREATE FUNCTION count_limits(
    in_now timestamptz,
    in_phones text[], in_merchants text[], in_most int[], in_windows_s int[], in_asking text[],
    in_pace_kinds text[], in_pace_subjects text[], in_carriers text[], in_accounts text[], in_numbers uuid[]
) RETURNS TABLE (kind text, which bigint, n bigint, m bigint, at timestamptz, flag boolean, words text[], since timestamptz)
LANGUAGE sql STABLE AS $$
SELECT 'now', 0::bigint, NULL::bigint, NULL::bigint, in_now, NULL::boolean,
       NULL::text[], NULL::timestamptz
UNION ALL
SELECT 'person', q.which, count(c.send_at), NULL, min(c.send_at), coalesce(bool_and(c.own), true), NULL, NULL
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
SELECT 'pace', q.which, NULL, NULL, p.next_start_at, NULL, NULL, NULL
FROM unnest(in_pace_kinds, in_pace_subjects) WITH ORDINALITY AS q (kind, subject, which)
CROSS JOIN LATERAL (SELECT next_start_at FROM paces WHERE kind = q.kind AND subject = q.subject LIMIT 1) AS p
UNION ALL
SELECT 'doubt', q.which, doubts.n,
       -- A few doubts are nothing; only beyond them is it worth adding up the account's channels.
       CASE WHEN doubts.n > 3 THEN (SELECT sum(n.max_channels) FROM numbers AS n
                                    WHERE n.carrier = q.carrier AND n.account = q.account) END,
       -- When the account last took a call. Here, because one more part of the query costs more than all it reads.
       (SELECT h.taken_at FROM carrier_health AS h WHERE h.carrier = q.carrier AND h.account = q.account),
       NULL, NULL, NULL
FROM unnest(in_carriers, in_accounts) WITH ORDINALITY AS q (carrier, account, which)
CROSS JOIN LATERAL (SELECT count(*) AS n FROM attempts AS a
                    WHERE a.carrier = q.carrier AND a.account = q.account AND a.state = 'in_doubt') AS doubts
UNION ALL
SELECT 'number', q.which, (SELECT count(*) FROM attempts AS a WHERE a.number_id = q.id AND a.holds_channel),
       NULL, NULL, true, NULL, NULL
FROM unnest(in_numbers) WITH ORDINALITY AS q (id, which)
JOIN numbers AS n ON n.id = q.id
CROSS JOIN LATERAL (
    SELECT a.channel_no FROM attempts AS a
    WHERE a.number_id = q.id AND a.holds_channel ORDER BY a.channel_no DESC LIMIT 1) AS highest
WHERE highest.channel_no > n.max_channels
UNION ALL
SELECT 'cooldown', q.which, c.probes, NULL, c.opens_at, c.needs_ringing,
       ARRAY[c.scope, c.subject, c.code, c.probe::text, a.state, a.end_reason, a.to_phone], a.send_at
FROM unnest(in_carriers, in_accounts) WITH ORDINALITY AS q (carrier, account, which)
CROSS JOIN LATERAL (SELECT * FROM cooldowns AS d
                    WHERE d.carrier = q.carrier AND d.account = q.account
                      AND (d.scope <> 'number' OR d.subject = ANY(in_numbers::text[]))
                    OFFSET 0) AS c
LEFT JOIN LATERAL (SELECT state, end_reason, to_phone, send_at FROM attempts WHERE id = c.probe LIMIT 1) AS a ON true
$$;

CREATE FUNCTION lock_and_count_limits(
    in_keys bigint[], in_numbers uuid[],
    in_phones text[], in_merchants text[], in_most int[], in_windows_s int[], in_asking text[],
    in_pace_kinds text[], in_pace_subjects text[], in_carriers text[], in_accounts text[]
) RETURNS TABLE (
    kind text, which bigint, n bigint, m bigint, at timestamptz, flag boolean,
    id uuid, e164 text, carrier text, account text, max_channels int, starts_per_s float8, status text, pool_id text,
    words text[], since timestamptz
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
               n.id, n.e164, n.carrier, n.account, n.max_channels, n.starts_per_s, n.status, n.pool_id,
               NULL::text[], NULL::timestamptz
        FROM numbers AS n WHERE n.id = ANY(in_numbers) ORDER BY n.id FOR NO KEY UPDATE;
    ELSE
        RETURN QUERY
        SELECT 'locked', 0::bigint, NULL::bigint, NULL::bigint, NULL::timestamptz, false,
               n.id, n.e164, n.carrier, n.account, n.max_channels, n.starts_per_s, n.status, n.pool_id,
               NULL::text[], NULL::timestamptz
        FROM numbers AS n WHERE n.id = ANY(in_numbers) ORDER BY n.id FOR SHARE;
    END IF;

    locked_at := clock_timestamp();
    RETURN QUERY
    SELECT c.kind, c.which, c.n, c.m, c.at, c.flag,
           NULL::uuid, NULL, NULL, NULL, NULL::int, NULL::float8, NULL, NULL, c.words, c.since
    FROM count_limits(locked_at, in_phones, in_merchants, in_most, in_windows_s, in_asking,
                      in_pace_kinds, in_pace_subjects, in_carriers, in_accounts, in_numbers) AS c;
END $$;
