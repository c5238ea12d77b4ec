"""Lets time pass quickly for whatever waits: back-offs, doubts, leases of the dead. The platform's own times stay as
they are in production; what changes is the past in which things began.

What is younger than `settled_s` is left alone: a request may still be on its way, and its process may still be alive.
It stands for the horizon of a real carrier, and is longer than the sender's deadline and the request's together.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Protocol

import asyncpg

from trunkline.store.database import UNAVAILABLE, Database

# What a test sees of a Postgres that somebody is restarting.
AWAY: tuple[type[BaseException], ...] = (*UNAVAILABLE, asyncpg.PostgresError)
SETTLED_S = 4.0
STEP_S = 120.0
EVERY_S = 0.4

# All attempts of a lead together: which of them is the newest must not change.
_AGE_ATTEMPTS = """
WITH waiting AS (
    SELECT DISTINCT a.lead_id FROM attempts AS a JOIN seen_moves AS s ON s.attempt_id = a.id AND s.before IS NULL
    WHERE a.holds_channel AND s.at < clock_timestamp() - make_interval(secs => $1)
), ours AS (
    SELECT id FROM attempts WHERE lead_id IN (SELECT lead_id FROM waiting) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE attempts AS a
SET intent_at = intent_at - step, send_at = send_at - step, next_check_at = next_check_at - step
FROM ours, make_interval(secs => $2) AS step
WHERE a.id = ours.id
"""
# As an operator does it who wants these called now: with a new version.
_CALL_NOW = """
UPDATE leads AS l SET due_at = clock_timestamp(), version = version + 1
FROM (SELECT id FROM leads WHERE status = 'BACKLOG' AND due_at > clock_timestamp()
      ORDER BY id FOR NO KEY UPDATE SKIP LOCKED) AS ours
WHERE l.id = ours.id
"""
# A lease of 15 s is renewed every five: one that has less than eight left belongs to nobody any more.
_END_LEASES = """
UPDATE mailboxes AS m SET claimable_at = clock_timestamp()
FROM (SELECT kind, key FROM mailboxes
      WHERE claimable_at > clock_timestamp()
        AND (processing_status = 'queued' OR claimable_at < clock_timestamp() + interval '8 seconds')
      ORDER BY kind, key FOR NO KEY UPDATE SKIP LOCKED) AS ours
WHERE m.kind = ours.kind AND m.key = ours.key
"""


# Everything that this knows of its calls and its looks at carriers' lists.
_PASS = """
WITH looks AS (
    UPDATE account_looks
    SET next_at = next_at - step, looked_at = looked_at - step, leased_until = leased_until - step
    FROM make_interval(secs => $1) AS step
)
UPDATE attempts
SET intent_at = intent_at - step, send_at = send_at - step, next_check_at = next_check_at - step,
    looked_at = looked_at - step, ringing_at = ringing_at - step, answered_at = answered_at - step
FROM make_interval(secs => $1) AS step
WHERE holds_channel
"""


class Place(Protocol):
    """An installation, whose Postgres has the triggers of `tests.support.installation`."""

    @property
    def database(self) -> Database: ...


async def pass_time(place: Place, seconds: float) -> datetime:
    """As if so many seconds had passed for calls that hold a channel, and for whoever looks for their ends. The moment
    at which they had."""
    async with place.database.connection() as conn:
        await conn.execute(_PASS, seconds)
        now: datetime = await conn.fetchval("SELECT clock_timestamp()")
    return now


async def hurry_once(place: Place, settled_s: float = SETTLED_S) -> None:
    try:
        async with place.database.connection() as conn:
            await conn.execute(_AGE_ATTEMPTS, settled_s, STEP_S)
            await conn.execute(_CALL_NOW)
            await conn.execute(_END_LEASES)
    except AWAY:
        return  # the next time


@asynccontextmanager
async def hurrying(place: Place, settled_s: float = SETTLED_S) -> AsyncIterator[None]:
    """For the length of the block."""

    async def keep_hurrying() -> None:
        while True:
            await hurry_once(place, settled_s)
            await asyncio.sleep(EVERY_S)

    task = asyncio.create_task(keep_hurrying(), name="hurry")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
