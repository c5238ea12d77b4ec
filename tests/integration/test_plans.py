"""A plan is made once for a connection, often on the first day, when all tables are small. What a call does is planned
so that it reads a few rows by their keys then, and as few of them when there are thousands."""

from collections.abc import AsyncIterator, Awaitable, Callable
from uuid import UUID

import pytest

from tests.support.dispatch.dialing import Dialing, open_dialing
from tests.support.store.reading import rows_read
from trunkline.model import CallFacts, Finish, Outcome
from trunkline.states import AttemptState
from trunkline.store import attempts, mailboxes
from trunkline.store.attempts import Result
from trunkline.store.database import Connection
from trunkline.store.mailboxes import NewEvent

# Postgres plans a statement anew five times, then it keeps a plan.
TIMES = 7
MANY = 500
# A few index entries for each of the rows that are asked for.
FEW = 60

Step = Callable[[Connection, UUID, UUID, int], Awaitable[object]]


@pytest.fixture
async def dialing(database_url: str) -> AsyncIterator[Dialing]:
    async with open_dialing(database_url) as dialing:
        yield dialing


async def answer(tx: Connection, attempt: UUID, lead: UUID, time: int) -> None:
    assert await attempts.write_results(tx, [Result(attempt, AttemptState.ACCEPTED, "CA1")]) is not None


async def lock(tx: Connection, attempt: UUID, lead: UUID, time: int) -> None:
    assert attempt in await attempts.lock(tx, [attempt])


async def fold(tx: Connection, attempt: UUID, lead: UUID, time: int) -> None:
    await attempts.lock(tx, [attempt])
    await attempts.apply_facts(tx, {attempt: CallFacts(AttemptState.RINGING)})


async def finish(tx: Connection, attempt: UUID, lead: UUID, time: int) -> None:
    await attempts.lock(tx, [attempt])
    await attempts.finish_leads(tx, {lead: Finish(Outcome.BUSY, None)})


async def handle(tx: Connection, attempt: UUID, lead: UUID, time: int) -> None:
    keys = [str(attempt), str(lead)]
    await mailboxes.append(tx, [NewEvent("call", key, f"event {time}", "ended", {}) for key in keys])
    claimed = await mailboxes.claim(tx, "call", keys, limit=10, worker="w", lease_s=10, events_max=10)
    assert len(await mailboxes.complete(tx, claimed)) == 2


STEPS: list[tuple[Step, str]] = [
    (answer, "attempts"),
    (lock, "attempts"),
    (lock, "leads"),
    (fold, "attempts"),
    (finish, "leads"),
    (handle, "mailboxes"),
    (handle, "mailbox_events"),
]


@pytest.mark.parametrize(("step", "table"), STEPS)
async def test_a_query_planned_on_empty_tables_reads_few_rows_of_full_ones(
    dialing: Dialing, step: Step, table: str
) -> None:
    lead = await dialing.lead()
    (intent,) = (await dialing.intend(dialing.grant(lead))).committed
    async with dialing.database.warm_pool.acquire() as connection:
        for time in range(TIMES):
            async with connection.transaction():
                await step(connection, intent.attempt_id, lead, time)
        await fill(connection)
        async with connection.transaction():
            before = await rows_read(connection, table)
            await step(connection, intent.attempt_id, lead, TIMES)
            assert await rows_read(connection, table) - before < FEW


async def fill(connection: Connection) -> None:
    """Other leads, their calls and mailboxes. Nothing tells the planner of them."""
    await connection.execute(
        "INSERT INTO leads SELECT (jsonb_populate_record(l, jsonb_build_object("
        " 'id', gen_random_uuid(), 'request_id', gen_random_uuid()))).*"
        " FROM leads AS l CROSS JOIN generate_series(1, $1::int)",
        MANY,
    )
    await connection.execute(
        "INSERT INTO attempts SELECT (jsonb_populate_record(a, jsonb_build_object("
        " 'id', gen_random_uuid(), 'lead_id', l.id, 'state', 'ended', 'holds_channel', false,"
        " 'carrier_call_id', NULL))).* FROM attempts AS a CROSS JOIN leads AS l WHERE l.id <> a.lead_id"
    )
    boxes = [NewEvent("call", f"box {n}", "event", "ended", {}) for n in range(MANY)]
    await mailboxes.append(connection, boxes)
