# ruff: noqa: E501 (statements, a clause to a line)
"""A database as it is after a good month: leads of several merchants and campaigns, and what hangs on them.

Everything is written by Postgres itself, so that a million leads take a minute. The newest leads all wait and the oldest
have all finished, and one merchant has half of them: lists that look for one status, or for a small tenant, have far to go.
"""

from dataclasses import dataclass
from typing import Any

import asyncpg

NUMBERS, CHANNELS = 50, 10
# Two in a hundred thousand: every channel of ten numbers at a million leads.
CALLING = 100
_GROUND = f"""
INSERT INTO resellers VALUES ('r0', 'R'), ('r1', 'R');
INSERT INTO pools (id, reseller_id, name) VALUES ('p', NULL, 'P');
INSERT INTO merchants (id, reseller_id, name, default_pool_id)
SELECT 'm' || i, 'r' || i % 2, 'M', 'p' FROM generate_series(0, 19) AS i;
INSERT INTO numbers (id, e164, pool_id, carrier, max_channels)
SELECT gen_random_uuid(), '+1415' || 2000000 + i, 'p', 'twilio', {CHANNELS} FROM generate_series(1, {NUMBERS}) AS i;
INSERT INTO campaigns (id, reseller_id, merchant_id, request_hash, name, status, pool_id, priority, max_attempts,
                       given_pool_id, given_priority, given_max_attempts, started_at)
SELECT ('00000000-0000-7000-8000-' || lpad(i::text, 12, '0'))::uuid, 'r' || i % 2, 'm' || i, decode(repeat('00', 32), 'hex'),
       'Campaign ' || i, 'RUNNING', 'p', 50, 3, 'p', 50, 3, now()
FROM generate_series(0, 19) AS i;
-- A UUIDv7 of a moment, told apart by a number.
CREATE FUNCTION id_of(at timestamptz, nth bigint) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '70008' || lpad(nth::text, 15, '0'))::uuid
$$;
"""
# $1 leads before, $2 leads afterwards. Half of them are of one merchant, half of those in its campaign.
_LEADS = """
INSERT INTO leads (id, reseller_id, merchant_id, request_id, request_hash, phone, pool_id, campaign_id, status, outcome,
                   scheduled_at, due_at, created_at, attempt_count, max_attempts, finished_at, payload)
SELECT id_of(at, n), 'r' || m % 2, 'm' || m, 'order-' || n, decode(repeat('00', 32), 'hex'), '+1' || 2122000000 + n, 'p',
       CASE WHEN n % 4 = 0 OR m <> 0 THEN ('00000000-0000-7000-8000-' || lpad(m::text, 12, '0'))::uuid END, status,
       CASE WHEN status = 'FINISHED' THEN (ARRAY['ANSWERED', 'NO_ANSWER', 'BUSY'])[1 + n % 3] END,
       at, CASE WHEN status = 'BACKLOG' AND n % 2 = 0 THEN now() + interval '1 day' ELSE at END, at,
       (status <> 'BACKLOG')::int, 3, CASE WHEN status = 'FINISHED' THEN at + interval '1 minute' END,
       '{"customer_name": "Ada", "order": 17}'
FROM generate_series($1::bigint + 1, $2::bigint) AS n
CROSS JOIN LATERAL (SELECT CASE WHEN n % 2 = 0 THEN 0 ELSE n % 20 END AS m,
                           now() - interval '30 days' + n * interval '30 days' / $2::bigint AS at) AS x
CROSS JOIN LATERAL (SELECT CASE WHEN n <= $2 * 0.6 THEN 'FINISHED' WHEN n <= $2 * 0.6 + $3::bigint THEN 'PROCESSING'
                                ELSE 'BACKLOG' END AS status) AS y
"""
_ATTEMPTS = """
INSERT INTO attempts (id, lead_id, attempt_no, reseller_id, merchant_id, campaign_id, number_id, channel_no, carrier, account,
                      to_phone, from_phone, state, holds_channel, next_check_at, dialer, lead_due_at, carrier_call_id,
                      intent_at, send_at, answered_at, ended_at, end_reason)
SELECT id_of(at, row_number() OVER ()), id, 1, reseller_id, merchant_id, campaign_id,
       (SELECT array_agg(n.id ORDER BY n.id) FROM numbers AS n)[1 + nth / 10 % 50], 1 + nth % 10, 'twilio', 'default', phone,
       '+14152000001', CASE WHEN is_live THEN 'answered' ELSE 'ended' END, is_live, now() + interval '1 hour', 'bench',
       at - interval '20 ms', 'CA' || id, at, at, at, CASE WHEN NOT is_live THEN at END, CASE WHEN NOT is_live THEN 'completed' END
FROM (SELECT l.*, status = 'PROCESSING' AS is_live, row_number() OVER (ORDER BY id DESC) - 1 AS nth FROM leads AS l
      WHERE status <> 'BACKLOG' AND NOT EXISTS (SELECT FROM attempts AS a WHERE a.lead_id = l.id)) AS called
CROSS JOIN LATERAL (SELECT now() - nth * interval '10 ms' AS at) AS x
"""
_REST = """
INSERT INTO decisions (lead_id, reason, merchant_id)
SELECT id, reason, merchant_id FROM (SELECT id, merchant_id FROM leads WHERE status = 'BACKLOG' LIMIT $1::int / 10) AS l,
       unnest(ARRAY['window', 'channels']) AS reason ON CONFLICT DO NOTHING;
INSERT INTO mailboxes (kind, key, processing_status, appended, processed, claimable_at, last_error, last_processed_at)
SELECT 'call', id::text, 'idle', 2, 2, NULL, NULL, now() FROM (SELECT id FROM attempts ORDER BY id DESC LIMIT $1::int / 5) AS a
ON CONFLICT DO NOTHING;
INSERT INTO mailboxes (kind, key, processing_status, appended, processed, claimable_at, last_error)
SELECT 'issue', 'of-' || $1 || '-' || n, CASE WHEN n % 10 = 0 THEN 'dead' ELSE 'queued' END, 2, 0,
       CASE WHEN n % 10 <> 0 THEN now() END, CASE WHEN n % 10 = 0 THEN 'the handler said no' END
FROM generate_series(1, $1::int / 10) AS n;
INSERT INTO mailbox_events (mailbox_id, seq, dedupe_key, type, payload, processed_at)
SELECT m.id, seq, seq::text, 'answered', '{"call_id": "CA"}', CASE WHEN m.kind = 'call' THEN now() END
FROM mailboxes AS m, generate_series(1, 2) AS seq ON CONFLICT DO NOTHING;
INSERT INTO job_outbox (id, job_type, payload, run_at, reseller_id, merchant_id)
SELECT id_of(now(), $1 + n), 'deliver_webhook', '{}', now() + interval '1 day', 'r0', 'm0' FROM generate_series(1, $1::int / 20) AS n;
INSERT INTO job_history (id, job_type, created_at, priority, attempt_count, max_attempts, outcome, reseller_id, merchant_id)
SELECT id_of(now() - interval '1 h', $1 + n), 'deliver_webhook', now(), 50, 1, 4, 'succeeded', 'r0', 'm0'
FROM generate_series(1, $1::int / 5) AS n;
INSERT INTO job_dead (id, job_type, created_at, fence, priority, attempt_count, max_attempts, payload, last_error_message)
SELECT id_of(now() - interval '2 h', $1 + n), 'deliver_webhook', now(), 1, 50, 4, 4, '{}', 'the receiver did not answer'
FROM generate_series(1, $1::int / 100) AS n;
INSERT INTO audit_log (at, actor, action, subject, reason, reseller_id, merchant_id)
SELECT now() - interval '30 days' + n * interval '30 days' / ($1::int / 3), 'key:' || n % 10, 'control.stopped',
       'merchant/m' || n % 20, 'because', 'r' || n % 2, 'm' || n % 20
FROM generate_series(1, $1::int / 3) AS n;
INSERT INTO reminders (id, reseller_id, merchant_id, request_hash, phone, timezone, starts_at, rrule, pool_id, late_s, next_wall,
                       next_at)
SELECT id_of(now() - n * interval '1 s', $1 + n), 'r' || n % 2, 'm' || n % 20, decode(repeat('00', 32), 'hex'), '+12125550100',
       'UTC', '2030-01-01', 'FREQ=DAILY', 'p', 3600, '2030-01-01', '2030-01-01Z'
FROM generate_series(1, $1::int / 50) AS n;
INSERT INTO alarms (id, name, subject, severity, cleared_at, cleared_by)
SELECT id_of(now(), $1 + n), 'job_dead', $1 || '/' || n, 'warning', CASE WHEN n > 30 THEN now() END,
       CASE WHEN n > 30 THEN 'bench' END
FROM generate_series(1, $1::int / 100) AS n;
INSERT INTO controls (scope, subject, set_by, reason, changed_by, ramp_s)
SELECT 'merchant', 'm' || i, 'platform', 'because', 'bench', 0 FROM generate_series(1, 19) AS i ON CONFLICT DO NOTHING;
"""


@dataclass(frozen=True, slots=True)
class Shown:
    """Who is looked at."""

    leads: list[str]
    finished_lead: str
    phone: str
    request_id: str
    number: str
    reminder: str
    job: str
    mailbox: str


async def make_ground(connection: "asyncpg.Connection[Any]") -> None:
    await connection.execute(_GROUND)


async def fill(connection: "asyncpg.Connection[Any]", before: int, leads: int) -> None:
    """Up to so many leads. What there was of smaller sizes stays."""
    calling = CALLING if before == 0 else 0
    await connection.execute(_LEADS, before, leads, min(calling, leads // 10))
    await connection.execute(_ATTEMPTS)
    # Several statements take no parameters; this one is a number of ours.
    await connection.execute(_REST.replace("$1", str(leads)))
    await connection.execute("VACUUM (ANALYZE)")


async def look(connection: "asyncpg.Connection[Any]") -> Shown:
    async def text(query: str) -> str:
        return str(await connection.fetchval(query))

    waiting = await connection.fetch(
        "SELECT lead_id FROM decisions GROUP BY lead_id ORDER BY lead_id DESC LIMIT 10"
    )
    row = await connection.fetchrow(
        "SELECT id, phone, request_id FROM leads WHERE status = 'FINISHED' ORDER BY id DESC LIMIT 1"
    )
    assert row is not None
    return Shown(
        leads=[str(each["lead_id"]) for each in waiting],
        finished_lead=str(row["id"]),
        phone=row["phone"],
        request_id=row["request_id"],
        number=await text("SELECT number_id FROM attempts WHERE holds_channel LIMIT 1"),
        reminder=await text("SELECT id FROM reminders ORDER BY id DESC LIMIT 1"),
        job=await text("SELECT id FROM job_dead ORDER BY id DESC LIMIT 1"),
        mailbox=await text("SELECT key FROM mailboxes WHERE kind = 'call' LIMIT 1"),
    )
