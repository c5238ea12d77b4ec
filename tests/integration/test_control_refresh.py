"""Controls and flags in several processes on a real database."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from tests.support.waiting import eventually
from trunkline.bus import connection as bus_connection
from trunkline.bus.connection import Bus
from trunkline.bus.keys import Keys
from trunkline.control.continuity import Guardian
from trunkline.control.controls import Controls
from trunkline.control.flags import EVENT_DISPATCH, FlagBoard, Flags
from trunkline.control.refresh import INTERVAL_S, ControlRefresh
from trunkline.schema.flags import Flag
from trunkline.store import controls, flags
from trunkline.store import database as store_database
from trunkline.store.controls import Level, NewStop, Scope
from trunkline.store.database import Database
from trunkline.store.tenants import PLATFORM
from trunkline.telemetry import metrics
from trunkline.testing.clock import ManualClock


@dataclass
class Process:
    database: Database
    clock: ManualClock
    guardian: Guardian
    controls: Controls
    board: FlagBoard
    refresh: ControlRefresh


def process(database: Database, bus: Bus) -> Process:
    clock = ManualClock()
    guardian = Guardian(database, bus, clock)
    view, board = Controls(clock), FlagBoard()
    return Process(database, clock, guardian, view, board, ControlRefresh(database, guardian, view, board))


async def opened(database: Database, bus: Bus) -> Process:
    one = process(database, bus)
    await one.refresh.run_once()
    await one.refresh.run_once()
    assert one.controls.closed is None
    return one


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = await store_database.connect(database_url, pool_size=4)
    yield database
    await database.close()


@pytest.fixture
async def bus(redis_url: str, key_prefix: str) -> AsyncIterator[Bus]:
    bus = bus_connection.connect(redis_url, Keys(prefix=key_prefix))
    yield bus
    await bus.close()


def stop_of(scope: Scope, subject: str = "", **more: float) -> NewStop:
    return NewStop(scope, subject, Level.PLATFORM, "a reason", "key:1", PLATFORM, ramp_s=0, **more)  # type: ignore[arg-type]


async def stop(database: Database, scope: Scope, subject: str = "", **more: float) -> None:
    async with database.transaction() as tx:
        await controls.stop(tx, stop_of(scope, subject, **more))


async def test_a_stop_is_in_force_in_every_process_after_its_next_refresh(
    database: Database, bus: Bus
) -> None:
    first, second = await opened(database, bus), await opened(database, bus)
    await stop(database, Scope.MERCHANT, "shop")
    for each in (first, second):
        assert each.controls.stopped(merchant_id="shop") is None
        assert await each.refresh.run_once() == 1
        found = each.controls.stopped(merchant_id="shop")
        assert found is not None
        assert found.reason == "a reason"
        assert each.controls.stopped(merchant_id="another") is None


def test_two_refreshes_fit_into_one_second() -> None:
    assert INTERVAL_S * 2 <= 1.0


async def test_a_running_refresh_wakes_waiters_of_a_change(database: Database, bus: Bus) -> None:
    one = await opened(database, bus)
    seen = one.controls.generation
    running = asyncio.create_task(one.refresh.run())
    try:
        await stop(database, Scope.KILL_SWITCH)
        async with asyncio.timeout(10):
            await one.controls.changed(seen)
        assert one.controls.killed() is not None
    finally:
        one.refresh.stop()
        await running


async def test_a_refresh_that_finds_the_same_version_reads_no_stops(database: Database, bus: Bus) -> None:
    one = await opened(database, bus)
    async with database.connection() as conn:
        await conn.execute(
            "INSERT INTO controls (scope, subject, set_by, reason, changed_by, ramp_s) "
            "VALUES ('merchant', 'shop', 'platform', 'r', 'k', 0)"
        )
    assert await one.refresh.run_once() == 0
    assert one.controls.stopped(merchant_id="shop") is None, "it was written past the number"


async def test_a_stop_that_commits_after_a_later_one_is_not_missed(database: Database, bus: Bus) -> None:
    """Two changes at once: the one that began first commits last. Times would lie, numbers do not."""
    one = await opened(database, bus)
    release = asyncio.Event()
    holds = asyncio.Event()

    async def slow() -> None:
        async with database.transaction() as tx:
            await controls.stop(tx, stop_of(Scope.MERCHANT, "slow"))
            holds.set()
            await release.wait()

    slowly = asyncio.create_task(slow())
    await holds.wait()
    quickly = asyncio.create_task(stop(database, Scope.MERCHANT, "quick"))
    await one.refresh.run_once()
    release.set()
    await asyncio.gather(slowly, quickly)
    await one.refresh.run_once()
    for merchant_id in ("slow", "quick"):
        assert one.controls.stopped(merchant_id=merchant_id) is not None, merchant_id


async def test_a_stop_ends_at_ends_at_without_a_refresh(database: Database, bus: Bus) -> None:
    one = await opened(database, bus)
    await stop(database, Scope.MERCHANT, "shop", ends_in_s=30)
    await one.refresh.run_once()
    assert one.controls.stopped(merchant_id="shop") is not None
    one.clock.advance(31)
    assert one.controls.stopped(merchant_id="shop") is None


async def test_an_expired_stop_is_deleted_with_the_next_change(database: Database, bus: Bus) -> None:
    await stop(database, Scope.MERCHANT, "shop", ends_in_s=30)
    async with database.connection() as conn:
        await conn.execute("UPDATE controls SET ends_at = clock_timestamp() - interval '1 s'")
    await stop(database, Scope.MERCHANT, "another")
    async with database.connection() as conn:
        assert [row["subject"] for row in await conn.fetch("SELECT subject FROM controls")] == ["another"]


async def test_a_lifted_stops_share_grows_over_its_ramp(database: Database, bus: Bus) -> None:
    one = await opened(database, bus)
    await stop(database, Scope.MERCHANT, "shop")
    async with database.transaction() as tx:
        resumed = await controls.resume(
            tx, Scope.MERCHANT, "shop", Level.PLATFORM, reason="solved", by="key:1", ramp_s=100
        )
        assert resumed is not None
        assert (
            await controls.resume(
                tx, Scope.MERCHANT, "shop", Level.PLATFORM, reason="again", by="key:1", ramp_s=9
            )
            is None
        )
    await one.refresh.run_once()
    assert one.controls.stopped(merchant_id="shop") is None
    early = one.controls.share(merchant_id="shop")
    one.clock.advance(50)
    later = one.controls.share(merchant_id="shop")
    one.clock.advance(51)
    assert early < later < one.controls.share(merchant_id="shop") == 1.0


async def test_without_postgres_the_last_known_state_holds_and_the_gauges_say_so(
    database_url: str, bus: Bus
) -> None:
    database = await store_database.connect(database_url, pool_size=2)
    one = await opened(database, bus)
    await stop(database, Scope.MERCHANT, "shop")
    await one.refresh.run_once()
    await database.close()
    one.clock.advance(60)
    with pytest.raises(Exception, match="clos"):
        await one.refresh.run_once()
    assert one.controls.stopped(merchant_id="shop") is not None
    assert one.controls.stopped(merchant_id="another") is None
    assert one.controls.is_stale
    assert metrics.REGISTRY.get_sample_value("trunkline_controls_age_seconds") == 60
    gauge = metrics.REGISTRY.get_sample_value("trunkline_alarm", {"name": "postgres_unreachable"})
    assert gauge == 1


async def test_a_flag_is_in_force_after_the_next_refresh(database: Database, bus: Bus) -> None:
    one = await opened(database, bus)
    asked = Flags(one.board)
    await asked.open()
    try:
        assert asked.is_on(EVENT_DISPATCH, reseller_id="acme") is True, "its default"
        async with database.transaction() as tx:
            await flags.lock(tx, EVENT_DISPATCH.name)
            flag = Flag(EVENT_DISPATCH.name, True, 100, {"acme": False}, {"shop": True}, "r", "key:1", None)
            await flags.set_flag(tx, flag)
        assert await one.refresh.run_once() == 1
        assert asked.is_on(EVENT_DISPATCH, reseller_id="acme") is False
        assert asked.is_on(EVENT_DISPATCH, reseller_id="acme", merchant_id="shop") is True
        assert asked.is_on(EVENT_DISPATCH, reseller_id="another") is True
        async with database.transaction() as tx:
            await flags.lock(tx, EVENT_DISPATCH.name)
            await flags.delete_flag(tx, EVENT_DISPATCH.name)
        await one.refresh.run_once()
        assert asked.is_on(EVENT_DISPATCH, reseller_id="acme") is True
    finally:
        await asked.close()


async def test_the_refresh_loops_pause_after_failures_does_not_exceed_its_interval(
    database: Database, bus: Bus
) -> None:
    """The pause after a failure does not grow past the interval: a change must not wait for it."""
    one = await opened(database, bus)
    looks = 0

    async def fail() -> None:
        nonlocal looks
        looks += 1
        raise OSError("away")

    one.guardian.poll = fail  # type: ignore[method-assign]
    one.refresh.interval_s = 0.001
    running = asyncio.create_task(one.refresh.run())
    await eventually(lambda: looks > 20)
    one.refresh.stop()
    await running
