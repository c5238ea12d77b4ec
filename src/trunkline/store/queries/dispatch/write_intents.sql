-- Last step: the slots of their agents, the attempts, and what follows from those that went in.
-- Slots go in by (pod, slot), all of them before the first attempt: who waits for an agent holds no channel. A slot that
-- is somebody else's, or of a pod that takes no dial any more, leaves its attempt out: no agent, no dial. A slot whose
-- attempt did not go in is dropped in the same transaction, by whoever called this.
-- They go in by (number, channel), so that everybody who inserts meets everybody else in one order. A conflict with a
-- unique index skips the row: only returned ids may be sent, and only their leads are started. The counters of days and
-- the paces are advanced for them alone: a skipped row costs nobody a turn. Both come after all attempts are in, in one
-- order: whoever waits for a channel holds neither.
--
-- $1-$17 attempts, $18 the dialer   $19-$22 paces: of which attempt, kind, subject, next start
-- $23-$26 slots of the attempts: pod, slot, incarnation, source pool; all NULL where no agent is needed, or none is kept by
-- choice: $27-$29 then say for which agents the call rings, how probably it is answered, and under which share it goes
WITH wanted AS MATERIALIZED (
    SELECT *
    FROM unnest($1::uuid[], $2::uuid[], $3::smallint[], $4::text[], $5::text[], $6::uuid[], $7::uuid[], $8::int[],
                $9::text[], $10::text[], $11::text[], $12::text[], $13::timestamptz[], $14::timestamptz[],
                $15::timestamptz[], $16::bigint[], $17::date[], $23::text[], $24::int[], $25::bigint[], $26::text[],
                $27::text[], $28::real[], $29::real[])
         AS w (id, lead_id, attempt_no, reseller_id, merchant_id, campaign_id, number_id, channel_no,
               carrier, account, to_phone, from_phone, lead_due_at, intent_at, send_at, reserved_micros, day,
               pod, slot, incarnation, source_pool, overdial_group, answer_rate, abandon_max)
), kept AS (
    INSERT INTO allocations (id, has_attempt, merchant_id, pod, slot, incarnation, source_pool)
    SELECT w.id, true, w.merchant_id, w.pod, w.slot, w.incarnation, w.source_pool
    FROM wanted AS w JOIN pods AS p ON p.name = w.pod
    WHERE p.incarnation = w.incarnation AND w.slot <= p.calls_max AND pod_takes(p, true)
    ORDER BY w.pod, w.slot
    ON CONFLICT DO NOTHING
    RETURNING id
), inserted AS (
    INSERT INTO attempts (id, lead_id, attempt_no, reseller_id, merchant_id, campaign_id, number_id, channel_no,
                          carrier, account, to_phone, from_phone, lead_due_at, intent_at, send_at, reserved_micros, dialer,
                          overdial_group, answer_rate, abandon_max)
    SELECT id, lead_id, attempt_no, reseller_id, merchant_id, campaign_id, number_id, channel_no,
           carrier, account, to_phone, from_phone, lead_due_at, intent_at, send_at, reserved_micros, $18,
           overdial_group, answer_rate, abandon_max
    FROM wanted
    WHERE pod IS NULL OR id IN (SELECT k.id FROM kept AS k)
    ORDER BY number_id, channel_no
    ON CONFLICT DO NOTHING
    RETURNING id, lead_id
), started AS (
    UPDATE leads AS l
    SET status = 'PROCESSING', attempt_count = attempt_count + 1, version = version + 1, updated_at = clock_timestamp()
    FROM inserted AS i
    WHERE l.id = i.lead_id
), used AS (
    INSERT INTO merchant_days AS d (merchant_id, day, attempts, spent_micros)
    SELECT w.merchant_id, w.day, count(*), sum(w.reserved_micros)
    FROM inserted AS i JOIN wanted AS w ON w.id = i.id
    GROUP BY 1, 2 ORDER BY 1, 2
    ON CONFLICT (merchant_id, day) DO UPDATE
    SET attempts = d.attempts + EXCLUDED.attempts, spent_micros = d.spent_micros + EXCLUDED.spent_micros
    RETURNING 1
), paced AS (
    INSERT INTO paces AS p (kind, subject, next_start_at)
    SELECT n.kind, n.subject, max(n.next_start_at)
    FROM (SELECT count(*) AS days FROM used) AS after
    CROSS JOIN unnest($19::uuid[], $20::text[], $21::text[], $22::timestamptz[])
               AS n (attempt_id, kind, subject, next_start_at)
    JOIN inserted AS i ON i.id = n.attempt_id
    GROUP BY 1, 2 ORDER BY 1, 2
    ON CONFLICT (kind, subject) DO UPDATE SET next_start_at = greatest(p.next_start_at, EXCLUDED.next_start_at)
)
SELECT id, true AS is_attempt FROM inserted UNION ALL SELECT id, false FROM kept
