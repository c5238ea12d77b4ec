"""Postgres put back to an earlier moment: a copy of the database, taken before, takes its place."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncpg
import pytest

from tests.support.store.restoring import Server, open_server
from tests.support.waiting import eventually
from trunkline.bus import connection as bus_connection
from trunkline.bus import outages
from trunkline.bus.connection import Bus
from trunkline.bus.keys import Keys
from trunkline.control.continuity import (
    UNWITNESSED_AFTER_S,
    WITNESS_WAIT_S,
    ContinuityMark,
    Guard,
    Guardian,
    Heartbeat,
)
from trunkline.control.controls import Controls
from trunkline.control.flags import FlagBoard
from trunkline.control.refresh import ControlRefresh
from trunkline.loops.leader import Leadership, LeaseTimes
from trunkline.model import Grant, new_id
from trunkline.settings import load_settings
from trunkline.store import controls, dispatch
from trunkline.store import database as store_database
from trunkline.store.controls import Level, Scope
from trunkline.store.database import Database
from trunkline.testing.clock import ManualClock

# What a process sees while its database is being replaced.
PASSING: tuple[type[BaseException], ...] = (*store_database.UNAVAILABLE, asyncpg.InvalidCatalogNameError)


@dataclass
class Process:
    database: Database
    clock: ManualClock
    guardian: Guardian
    controls: Controls
    refresh: ControlRefresh
    leadership: Leadership
    heartbeat: Heartbeat

    async def look(self, times: int = 2) -> None:
        for _ in range(times):
            await self.refresh.run_once()

    async def beat(self, times: int = 1) -> None:
        await self.leadership.run_once()
        for _ in range(times):
            assert await self.heartbeat.run_once() == 1

    @property
    def is_killed(self) -> bool:
        return self.controls.killed() is not None


@asynccontextmanager
async def process(url: str, bus: Bus, guard: Guard = "strict") -> AsyncIterator[Process]:
    database = await store_database.connect(url, pool_size=3)
    clock = ManualClock()
    guardian = Guardian(database, bus, clock, guard)
    view = Controls(clock)
    leadership = Leadership(database, clock, "control", "p", LeaseTimes())
    try:
        yield Process(
            database,
            clock,
            guardian,
            view,
            ControlRefresh(database, guardian, view, FlagBoard()),
            leadership,
            Heartbeat(leadership, database, bus, guardian),
        )
        await leadership.resign()
    finally:
        await database.close()


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[Server]:
    async with open_server(database_url) as server:
        yield server


@pytest.fixture
async def bus(redis_url: str, key_prefix: str) -> AsyncIterator[Bus]:
    bus = bus_connection.connect(redis_url, Keys(prefix=key_prefix))
    yield bus
    await bus.close()


async def live_on(url: str, bus: Bus, beats: int = 5) -> None:
    async with process(url, bus) as one:
        await one.look()
        await one.beat(beats)


async def make_old(database: Database, seconds: float) -> None:
    async with database.connection() as conn:
        await conn.execute("UPDATE continuity SET beat_at = beat_at - make_interval(secs => $1)", seconds)


async def refuses_to_start(one: Process, mark: ContinuityMark) -> bool:
    """What the transaction of an intent reads. False also while connections are still being replaced."""
    try:
        async with one.database.transaction() as tx:
            lead_id = await tx.fetchval("SELECT id FROM leads")
            grant = Grant(new_id(), lead_id, version=1, number_id=new_id(), channel_no=1, due_ms=0)
            leads = await dispatch.lock_granted(
                tx,
                [grant],
                lock_timeout_ms=1000,
                transaction_timeout_ms=1000,
                known=(mark.installation, mark.beat),
            )
            return [lead.halted for lead in leads.values()] == ["database_went_back"]
    except PASSING:
        return False


async def add_a_lead(url: str) -> None:
    conn = await asyncpg.connect(url)
    try:
        await conn.execute(
            "INSERT INTO resellers (id, name) VALUES ('r', 'R');"
            "INSERT INTO pools (id, reseller_id, name) VALUES ('p', 'r', 'P');"
            "INSERT INTO merchants (id, reseller_id, name) VALUES ('m', 'r', 'M');"
            "INSERT INTO leads (id, reseller_id, merchant_id, request_id, request_hash, phone, pool_id,"
            " scheduled_at, due_at) VALUES (gen_random_uuid(), 'r', 'm', '1', sha256('1'), '+12025550100', 'p',"
            " now(), now())"
        )
    finally:
        await conn.close()


async def forget(bus: Bus) -> None:
    await bus.read(bus.client.delete(bus.keys.witness))


async def test_a_platform_that_starts_on_a_restored_database_starts_with_the_kill_switch_on(
    database_url: str, server: Server, bus: Bus
) -> None:
    await live_on(database_url, bus)
    await server.back_up()
    await live_on(database_url, bus)
    await server.restore()
    async with process(database_url, bus) as one:
        assert one.is_killed, "before its first look everything is stopped"
        await one.look(1)
        assert one.is_killed, "and so it is until the switch is on"
        await one.look()
        stop = one.controls.killed()
        assert stop is not None
        assert (stop.scope, stop.until) == (Scope.KILL_SWITCH, None)
        assert "restored to an earlier moment" in stop.reason
        async with one.database.connection() as conn:
            [alarm] = await conn.fetch("SELECT name, severity FROM alarms WHERE cleared_at IS NULL")
            [line] = await conn.fetch("SELECT actor, action, subject FROM audit_log")
    assert tuple(alarm) == ("store_restored", "page")
    assert tuple(line) == ("system:continuity", "control.stopped", "kill_switch")


async def test_a_platform_that_restarts_on_the_same_database_is_not_stopped(
    database_url: str, bus: Bus
) -> None:
    await live_on(database_url, bus)
    async with process(database_url, bus) as one:
        await make_old(one.database, 1e6)
        await one.look()
        assert not one.is_killed, "it stood still for days, and Valkey remembers where"


async def test_a_new_installation_is_not_stopped(database_url: str, bus: Bus) -> None:
    async with process(database_url, bus) as one:
        await one.look()
        assert not one.is_killed


async def test_a_new_installation_on_a_used_valkey_is_not_stopped(
    database_url: str, server: Server, bus: Bus
) -> None:
    await server.back_up()
    await live_on(database_url, bus, beats=50)
    await server.restore()
    async with process(database_url, bus) as one:
        await one.look()
        assert not one.is_killed, "the copy is from before the first start: it has no past to lose"


async def test_a_running_process_stops_when_its_database_was_restored(
    database_url: str, server: Server, bus: Bus
) -> None:
    await live_on(database_url, bus)
    await add_a_lead(database_url)
    await server.back_up()
    async with process(database_url, bus) as one:
        await one.look()
        await one.beat(5)
        await forget(bus)
        await server.restore()
        mark = one.guardian.mark
        assert mark is not None
        assert await eventually(lambda: refuses_to_start(one, mark)), "before it has even looked"
        assert await one.heartbeat.run_as_leader(1) == 0, "counting on from there would hide the loss"
        await one.look(2)
        assert one.is_killed, "it remembers by itself, Valkey or not"


async def test_the_leader_does_not_beat_on_a_restored_database(
    database_url: str, server: Server, bus: Bus
) -> None:
    await live_on(database_url, bus)
    await server.back_up()
    await live_on(database_url, bus)
    remembered = await outages.recall(bus)
    await server.restore()
    async with process(database_url, bus) as one:
        await one.leadership.run_once()
        assert await one.heartbeat.run_once() == 0, "it has not been admitted"
    assert await outages.recall(bus) == remembered


async def test_a_kill_switch_lifted_after_a_restore_stays_off(
    database_url: str, server: Server, bus: Bus
) -> None:
    await live_on(database_url, bus)
    await server.back_up()
    await live_on(database_url, bus)
    await server.restore()
    async with process(database_url, bus) as one:
        await one.look(3)
        async with one.database.transaction() as tx:
            await controls.resume(
                tx, Scope.KILL_SWITCH, "", Level.PLATFORM, reason="checked", by="key:1", ramp_s=0
            )
        await one.look(1)
        assert not one.is_killed
        await one.beat(3)
        async with process(database_url, bus) as another:
            await another.look(3)
            assert not another.is_killed


async def test_one_of_two_processes_turns_the_kill_switch_on_after_a_restore(
    database_url: str, server: Server, bus: Bus
) -> None:
    await live_on(database_url, bus)
    await server.back_up()
    await live_on(database_url, bus)
    await server.restore()
    async with process(database_url, bus) as one, process(database_url, bus) as two:
        await one.look(1)
        await two.look(1)
        await one.look()
        await two.look()
        assert one.is_killed
        assert two.is_killed
        async with one.database.connection() as conn:
            assert await conn.fetchval("SELECT count(*) FROM audit_log") == 1


async def test_the_restore_guard_is_strict_by_default() -> None:
    assert load_settings().control.restore_guard == "strict"


async def test_an_old_database_without_leads_and_witness_is_not_stopped(database_url: str, bus: Bus) -> None:
    await live_on(database_url, bus)
    await forget(bus)
    async with process(database_url, bus) as one:
        await make_old(one.database, 1e6)
        await one.look(3)
        assert not one.is_killed


async def test_an_old_database_with_leads_and_without_a_witness_is_stopped(
    database_url: str, bus: Bus
) -> None:
    await live_on(database_url, bus)
    await add_a_lead(database_url)
    await forget(bus)
    async with process(database_url, bus) as fresh:
        await fresh.look()
        assert not fresh.is_killed, "a restart that lost Valkey's memory"
        await make_old(fresh.database, UNWITNESSED_AFTER_S)
    async with process(database_url, bus, guard="witness") as trusting:
        await trusting.look()
        assert not trusting.is_killed
    async with process(database_url, bus) as one:
        await one.look(3)
        stop = one.controls.killed()
        assert stop is not None
        assert "no witness knows" in stop.reason


async def test_an_unreachable_valkey_counts_as_no_witness_after_a_wait(database_url: str) -> None:
    away = bus_connection.connect("redis://127.0.0.1:1", Keys())
    async with process(database_url, away) as one:
        await one.look(3)
        assert one.controls.closed is not None, "it waits"
        async with one.database.connection() as conn:
            assert await conn.fetchval("SELECT count(*) FROM controls") == 0
        one.clock.advance(WITNESS_WAIT_S)
        await one.look()
        assert one.controls.killed() is None, "a young installation goes on without Valkey"
    await away.close()


async def test_a_beat_between_reading_valkey_and_postgres_is_no_restore(
    database_url: str, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that starts while another one leads reads Valkey first, Postgres second."""
    async with process(database_url, bus) as leader, process(database_url, bus) as starting:
        await leader.look()
        await leader.beat()
        asked = outages.recall

        async def ask_and_let_it_beat(bus: Bus) -> object:
            await leader.beat(3)
            said = await asked(bus)
            await leader.beat(3)
            return said

        monkeypatch.setattr(outages, "recall", ask_and_let_it_beat)
        await starting.look()
        assert not starting.is_killed


async def test_a_beat_during_the_leaders_own_look_is_no_restore(database_url: str, bus: Bus) -> None:
    async with process(database_url, bus) as one:
        await one.look()
        await one.beat()
        poll = controls.poll

        async def poll_and_let_it_beat(conn: object) -> object:
            seen = await poll(conn)  # type: ignore[arg-type]
            await one.beat()
            return seen

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(controls, "poll", poll_and_let_it_beat)
            await one.look(1)
        assert not one.is_killed
        mark = one.guardian.mark
        assert mark is not None
        assert (await outages.recall(bus)) == (mark.installation, mark.beat), "what it knows did not go back"
