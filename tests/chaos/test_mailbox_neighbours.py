"""What one handler of mailboxes does wrong, it does to its own mailbox. Two processes of an application handle them, a
third one, this, appends; others' events go on, and a process that is told to stop ends."""

import asyncio
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest

from tests.support.mailbox.application import LEDGER, application_process
from tests.support.waiting import eventually
from trunkline.mailbox import Mailboxes
from trunkline.store import mailboxes as store_mailboxes

# Soon enough that a test sees a handler given up, and so late that none is.
SOON_S = 1.0
NEVER_S = 600.0
# Three times in a lease somebody looks who did not stop.
SHORT_S = 1.5


@dataclass(frozen=True, slots=True)
class World:
    place: tuple[str, str, str]
    mailboxes: Mailboxes
    pool: "asyncpg.Pool[asyncpg.Record]"

    async def sql(self, statement: str, *args: object) -> Any:
        return await self.pool.fetchval(statement, *args)

    async def submit(self, kind: str, *keys: str) -> None:
        for key in keys:
            await self.mailboxes.submit(kind, key, "happened", {})

    async def begun(self, key: str, what: str, count: int = 1) -> bool:
        """Whether so many mailboxes of this name were begun on."""
        statement = "SELECT count(DISTINCT key) = $3 FROM begun WHERE key LIKE $1 AND what = $2"
        return bool(await self.sql(statement, f"{key}%", what, count))

    async def innocents_go_on(self, name: str) -> None:
        """Of the bad one's own kind and of another, more than there are hands."""
        keys = [f"{name} {n}" for n in range(20)]
        async with asyncio.timeout(60):
            await self.submit("good", *keys)
            await self.submit("bad", *keys)
        await eventually(
            lambda: self.sql("SELECT count(*) = 40 FROM effects WHERE key LIKE $1", f"{name} %"),
            timeout_s=60,
            what="40 innocent mailboxes handled",
        )

    async def state(self, key: str) -> tuple[str, int]:
        row = await self.pool.fetchrow(
            "SELECT processing_status, failures FROM mailboxes WHERE key = $1", key
        )
        assert row is not None
        return row[0], row[1]

    async def is_given_up(self, key: str) -> None:
        await eventually(
            lambda: self.sql("SELECT last_error LIKE 'HandlerStuck%' FROM mailboxes WHERE key = $1", key),
            timeout_s=60,
            what="the mailbox put back although its handler runs",
        )


@pytest.fixture
async def world(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[World]:
    async with (
        asyncpg.create_pool(database_url, min_size=1, max_size=2) as pool,
        Mailboxes(database_url, redis_url, prefix=key_prefix, schema=None) as mailboxes,
    ):
        await pool.execute(LEDGER)
        yield World((database_url, redis_url, key_prefix), mailboxes, pool)


async def ends(process: asyncio.subprocess.Process) -> None:
    """Told to stop, it waits `STOP_S` for what is in hand and `CANCEL_GRACE_S` for what it cancelled."""
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(30):
        await process.wait()
    assert process.returncode == 0


@pytest.mark.parametrize(("key", "what"), [("stubborn", "handle"), ("stubborn write", "write")])
async def test_a_mailbox_handler_that_swallows_its_cancellation_delays_no_other_mailbox(
    world: World, key: str, what: str
) -> None:
    """The stubborn write has locked a row that all others need: it goes with its connection."""
    async with application_process(world.place, timeout_s=SOON_S, lease_s=SHORT_S) as one:
        await world.submit("bad", key)
        await eventually(lambda: world.begun(key, what))
        await world.is_given_up(key)
        await world.innocents_go_on("in the same process")
        async with application_process(world.place, timeout_s=SOON_S, lease_s=SHORT_S):
            await ends(one)
            await world.innocents_go_on("in the other process")
    assert await world.sql("SELECT count(*) FROM effects WHERE key = $1", key) == 0


@pytest.mark.parametrize(("key", "what"), [("stubborn", "handle"), ("stubborn write", "write")])
async def test_sigterm_ends_a_process_whose_mailbox_handler_ignores_cancellation(
    world: World, key: str, what: str
) -> None:
    async with application_process(world.place, timeout_s=NEVER_S) as one:
        await world.submit("bad", key)
        await eventually(lambda: world.begun(key, what))
        await ends(one)
    # Given back under its fence: nobody waits for its lease to end, and nothing counts as a failure.
    assert await world.state(key) == ("queued", 0)
    await world.sql("DELETE FROM begun")
    async with application_process(world.place, timeout_s=SOON_S, lease_s=SHORT_S):
        await eventually(lambda: world.begun(key, what), what="its turn in the other process")
        await world.is_given_up(key)
        await world.innocents_go_on("in the other process")


async def test_ten_hanging_writes_delay_no_other_mailbox_and_no_shutdown(world: World) -> None:
    """As many as the application's pool has connections by default."""
    async with application_process(world.place, timeout_s=NEVER_S) as one:
        await world.submit("bad", *(f"hung write {n}" for n in range(10)))
        await eventually(lambda: world.begun("hung write", "write", 10), what="ten of them hang")
        await world.innocents_go_on("in the same process")
        async with application_process(world.place, timeout_s=NEVER_S) as other:
            await world.sql("DELETE FROM begun")
            await ends(one)
            await eventually(
                lambda: world.begun("hung write", "write", 10),
                timeout_s=60,
                what="they hang in the other process",
            )
            await world.innocents_go_on("in the other process")
            assert other.returncode is None
            await ends(other)
    failures = await world.sql("SELECT max(failures) FROM mailboxes")
    assert failures == 0


async def test_an_append_in_an_open_transaction_delays_no_other_mailbox(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long its own mailboxes are waited for."""
    monkeypatch.setattr(store_mailboxes, "LOCK_TIMEOUT_MS", 600_000)
    monkeypatch.setattr(store_mailboxes, "BATCH_LOCK_TIMEOUT_MS", 50)
    async with (
        application_process(world.place, timeout_s=NEVER_S) as one,
        application_process(world.place, timeout_s=NEVER_S),
        world.pool.acquire() as connection,
    ):
        await world.submit("good", "held")
        await eventually(lambda: world.sql("SELECT count(*) = 1 FROM effects"))
        async with connection.transaction():
            await world.mailboxes.append(connection, "good", "held", "happened", {})
            await world.mailboxes.append(connection, "good", "held and new", "happened", {})
            waiting = [
                asyncio.ensure_future(world.mailboxes.submit("good", key, "happened", {}))
                for key in ("held", "held and new")
            ]
            await world.innocents_go_on("while it is open")
            await ends(one)
            await world.innocents_go_on("in the other process")
        await asyncio.gather(*waiting, return_exceptions=True)
        await eventually(
            lambda: world.sql("SELECT count(*) >= 3 FROM effects WHERE key LIKE 'held%'"),
            what="what was kept open handled",
        )
