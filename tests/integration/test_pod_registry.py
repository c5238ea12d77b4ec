"""Pods in Postgres: which incarnation is the newest, what becomes of calls of earlier ones, which heartbeats count."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from tests.support.faults.proxy import TcpProxy
from tests.support.router.managed import Leading, Managed, Told, open_managed
from tests.support.router.world import StoredWorld
from tests.support.waiting import eventually
from tests.support.world import ALL_STANDARD
from trunkline.router.config import RouterConfig
from trunkline.router.pods import Pods, raise_if_reachable
from trunkline.router.pool_manager import ENDING_S, PoolManager
from trunkline.router.registry import PodRegistry
from trunkline.router.sources import HeartbeatSource, Sighting
from trunkline.routing import (
    ClusterPod,
    HeartbeatResult,
    LostAllocation,
    PodHeartbeat,
    PodSuperseded,
    RegisteredPod,
)
from trunkline.settings.tiers import parse_tiers
from trunkline.store import pods as store
from trunkline.store.database import Connection, Database
from trunkline.store.pods import TierTarget
from trunkline.testing.clock import ManualClock
from trunkline.value import replace

STANDARD = [TierTarget("standard", 9, 1)]


@pytest.fixture
async def managed(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Managed]:
    async with open_managed(database_url, redis_url, key_prefix, ALL_STANDARD) as managed:
        yield managed


def beat(boot: str, sequence: int = 1, calls: Sequence[str] = (), version: str = "") -> PodHeartbeat:
    return PodHeartbeat("agent-0", boot, sequence, "10.0.0.1", 8080, version, "", tuple(calls), False, 5.0)


async def register(database: Database, said: PodHeartbeat) -> RegisteredPod | PodSuperseded:
    async with database.transaction() as tx:
        answer = await store.register(tx, said, STANDARD, may_insert=True)
    assert answer is not None
    return answer


async def number_of(database: Database, said: PodHeartbeat) -> int:
    answer = await register(database, said)
    assert isinstance(answer, RegisteredPod)
    return answer.incarnation


async def see(database: Database, uid: str, *, is_deleting: bool = False) -> list[LostAllocation]:
    pod = ClusterPod("agent-0", uid, True, is_deleting, "10.0.0.1", 8080, "")
    async with database.transaction() as tx:
        _, lost = await store.see(tx, [pod], STANDARD)
    return lost


async def incarnation(database: Database) -> int:
    async with database.connection() as conn:
        (pod,) = await store.pods(conn)
    return pod.incarnation


async def test_each_boot_gets_a_new_incarnation_and_an_older_boot_is_superseded(managed: Managed) -> None:
    first = await number_of(managed.database, beat("boot-1"))
    assert await number_of(managed.database, beat("boot-1", 2)) == first
    second = await number_of(managed.database, beat("boot-2"))

    assert second > first
    assert await register(managed.database, beat("boot-1", 99)) == PodSuperseded()
    assert await incarnation(managed.database) == second


async def test_a_registration_returns_the_last_eight_boots(managed: Managed) -> None:
    for number in range(9):
        await register(managed.database, beat(f"boot-{number}"))
    last = await register(managed.database, beat("boot-9"))
    assert isinstance(last, RegisteredPod)
    assert last.past_boots == [f"boot-{number}" for number in range(1, 9)]


async def test_concurrent_registrations_fill_the_tiers_to_their_targets(managed: Managed) -> None:
    tiers = [TierTarget("gold", 2, 1), TierTarget("standard", 1, 1)]

    async def one(name: str) -> str:
        said = PodHeartbeat(name, "b", 1, interval_s=5.0)
        async with managed.database.transaction() as tx:
            answer = await store.register(tx, said, tiers, may_insert=True)
        assert isinstance(answer, RegisteredPod)
        return answer.tier

    found = await asyncio.gather(*(one(f"agent-{number}") for number in range(8)))

    assert (found.count("gold"), found.count("standard")) == (2, 6)


async def test_a_new_boot_keeps_only_the_calls_that_its_heartbeat_names(
    managed: Managed,
) -> None:
    world = managed.world
    await world.beat("agent-0")
    assert await managed.allocate("call-1") == "agent-0"
    await world.beat("agent-0", boot="boot-2", sequence=1)
    assert await world.live() == {"call-1": None}, "the row stays: the call may have another"
    await managed.execute("DELETE FROM allocations")

    await managed.allocate("call-2")
    await world.beat("agent-0", ["call-2"], boot="boot-3", sequence=1)

    assert await world.live() == {"call-2": "agent-0"}
    async with managed.database.connection() as conn:
        (row,) = await store.live_rows(conn)
    assert row.slot.incarnation == await incarnation(managed.database)


async def test_only_allocations_of_earlier_incarnations_lose_their_pod(managed: Managed) -> None:
    await managed.world.beat("agent-0")
    await managed.allocate("call-1")
    present = await incarnation(managed.database)
    async with managed.database.transaction() as tx:
        assert await store.lose_calls(tx, "agent-0", before=present) == []
        (lost,) = await store.lose_calls(tx, "agent-0", before=present + 1)
    assert lost.call == "call-1"


async def test_a_heartbeat_of_an_older_incarnation_is_not_written(managed: Managed) -> None:
    first = await number_of(managed.database, beat("boot-1"))
    await number_of(managed.database, beat("boot-2"))
    async with managed.database.transaction() as tx:
        await store.write_beats(tx, [(beat("boot-1", 99, ["call-9"]), first)])
    async with managed.database.connection() as conn:
        (pod,) = await store.pods(conn)
    assert (pod.boot_id, pod.sequence, pod.named) == ("boot-2", 1, [])


async def test_the_first_heartbeat_of_a_pod_seen_in_the_cluster_takes_its_incarnation(
    managed: Managed,
) -> None:
    await see(managed.database, "uid-1")
    made = await incarnation(managed.database)

    assert await number_of(managed.database, beat("boot-1")) == made
    await see(managed.database, "uid-1")
    assert await incarnation(managed.database) == made


async def test_a_new_uid_is_a_new_incarnation_that_its_first_heartbeat_takes(managed: Managed) -> None:
    await see(managed.database, "uid-1")
    first = await number_of(managed.database, beat("boot-1"))
    await managed.world.keep("dial", "agent-0")

    lost = await see(managed.database, "uid-2")

    second = await incarnation(managed.database)
    assert second > first
    assert len(lost) == 1
    assert await register(managed.database, beat("boot-1", 99)) == PodSuperseded()
    assert await number_of(managed.database, beat("boot-2")) == second


async def test_a_successor_that_beat_before_the_cluster_showed_it_keeps_its_incarnation(
    managed: Managed,
) -> None:
    await see(managed.database, "uid-1")
    await number_of(managed.database, beat("boot-1"))
    second = await number_of(managed.database, beat("boot-2"))
    await managed.world.keep("dial", "agent-0")

    # What the leader saw last of the one before, then its successor.
    assert await see(managed.database, "uid-1") == []
    assert await see(managed.database, "uid-2") == []

    assert await incarnation(managed.database) == second
    assert len(await see(managed.database, "uid-3")) == 1


async def test_with_a_cluster_source_a_heartbeat_creates_no_pod(managed: Managed) -> None:
    async with managed.database.transaction() as tx:
        assert await store.register(tx, beat("boot-1"), STANDARD, may_insert=False) is None
    assert await managed.world.tiers() == {}


class Seen:
    """A cluster that shows what it is told to."""

    def __init__(self) -> None:
        self.pods: list[ClusterPod] = []

    async def poll(self) -> Sighting:
        return Sighting()

    async def list_all(self, known: Sequence[str]) -> Sighting:
        return Sighting(self.pods, total=len(self.pods))


async def test_a_new_leader_takes_no_call_from_a_successor_pod_that_it_sees_late(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    """Router and agents are rolled together: while nobody leads a pod is replaced, and its successor gets a call."""
    async with open_managed(database_url, redis_url, key_prefix, ALL_STANDARD) as managed:
        config = RouterConfig(tiers=parse_tiers(ALL_STANDARD), by_heartbeat=False, postgres_young_s=0)
        cluster, leading = Seen(), Leading()
        world = StoredWorld(managed.world.bus, managed.world.keys, managed.database, config)

        async def is_over(_call: str) -> bool | None:
            return None

        manager = PoolManager(
            world.router_bus,
            config,
            cluster,
            leading,
            ManualClock(),
            managed.database,
            is_over=is_over,
            alarm=Told().alarm,
        )
        cluster.pods = [ClusterPod("va-0", "uid-1", True, False)]
        leading.term = 2
        await manager.run_once()
        await world.beat("va-0", boot="boot-1", sequence=1)

        leading.term = None
        await manager.run_once()
        await world.beat("va-0", boot="boot-2", sequence=1)
        assert await world.allocate("call-2") == "va-0"
        await world.beat("va-0", ["call-2"], boot="boot-2", sequence=2)
        cluster.pods = [ClusterPod("va-0", "uid-2", True, False)]
        leading.term = 3
        await manager.run_once()

        assert await world.live() == {"call-2": "va-0"}
        assert await world.allocate("call-3") == "none"
        assert await world.status_of("va-0") == "allocated"


async def test_a_silent_pod_of_the_cluster_loses_its_calls_and_stays_registered(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    async with open_managed(database_url, redis_url, key_prefix, ALL_STANDARD) as managed:
        await see(managed.database, "uid-1")
        await managed.world.beat("agent-0")
        assert await managed.allocate("call-1") == "agent-0"
        await managed.world.fall_silent("agent-0")
        async with managed.database.transaction() as tx:
            lost = await store.silence(tx, "agent-0", 90)
        assert [one.call for one in lost or []] == ["call-1"]
        assert await managed.world.tiers() == {"agent-0": "standard"}


def face_of(managed: Managed, database: Database | None = None, alarms: list[str] | None = None) -> Pods:
    async def alarm(name: str, subject: str, _detail: Mapping[str, Any]) -> None:
        assert name == "pod_name_twice"
        if alarms is not None:
            alarms.append(subject)

    return Pods(
        managed.world.router_bus,
        managed.config,
        database or managed.database,
        managed.world.registry,
        alarm,
    )


async def test_pods_of_two_clusters_under_one_name_are_superseded_with_an_alarm(managed: Managed) -> None:
    alarms: list[str] = []
    face = face_of(managed, alarms=alarms)
    refused = 0
    for sequence in range(1, 5):
        for cluster in ("east", "west"):
            said = PodHeartbeat("agent-0", f"boot-{cluster}", sequence, "10.0.0.1", 8080)
            refused += isinstance(await face.heartbeat(said), PodSuperseded)
            assert await managed.world.status_of("agent-0") in ("available", None)
    assert refused == 3, "the first of the earlier one was before the other came"
    assert set(alarms) == {"agent-0"}


async def nobody_knows(_call: str) -> bool | None:
    return None


async def raised(database: Database) -> list[tuple[str, str, object]]:
    async with database.connection() as conn:
        rows = await conn.fetch("SELECT name, subject, detail FROM alarms ORDER BY name")
    return [(row["name"], row["subject"], row["detail"]) for row in rows]


async def test_two_clusters_under_one_name_raise_an_alarm(managed: Managed) -> None:
    face = Pods(
        managed.world.router_bus, managed.config, managed.database, managed.world.registry,
        partial(raise_if_reachable, managed.database),
    )  # fmt: skip
    for sequence in range(1, 5):
        for cluster in ("east", "west"):
            await face.heartbeat(PodHeartbeat("agent-0", f"boot-{cluster}", sequence, "10.0.0.1", 8080))
    assert await raised(managed.database) == [("pod_name_twice", "agent-0", {})]


async def test_a_pod_that_stays_in_ending_raises_an_alarm(managed: Managed) -> None:
    manager = PoolManager(
        managed.world.router_bus, managed.config,
        HeartbeatSource(managed.world.router_bus, managed.config),
        managed.leading, managed.clock, managed.database,
        is_over=nobody_knows, alarm=partial(raise_if_reachable, managed.database),
    )  # fmt: skip
    await managed.world.beat("agent-0")
    assert await managed.allocate("call-1") == "agent-0"
    await managed.world.beat("agent-0", ["call-1"])
    await managed.world.release("call-1")
    await managed.world.beat("agent-0", ["call-1"])
    assert await managed.world.status_of("agent-0") == "ending"
    await manager.run_once()
    managed.clock.advance(ENDING_S)
    await manager.run_once()
    assert await raised(managed.database) == [("pod_hangs", "agent-0", {"calls": ["call-1"]})]


async def test_a_heartbeat_without_a_boot_id_makes_a_pod_that_takes_calls_at_once(managed: Managed) -> None:
    """No boot id, and the router's clock in the place of a sequence number; the store is as new as the pod."""
    heard = await face_of(managed).heartbeat(
        PodHeartbeat("agent-0", "", 1_900_000_000_000, "10.0.0.7", 8081, "1.4.0")
    )
    assert isinstance(heard, HeartbeatResult)
    assert (heard.tier, heard.again_in_s) == ("standard", 0.0)
    assert await managed.world.ask("call-1", is_alone=False) != "stale"
    assert await managed.allocate("call-1") == "agent-0"


async def test_a_new_pod_is_available_before_the_projection_is_rebuilt(
    managed: Managed,
) -> None:
    managed.leading.term = None
    await managed.world.flush()
    await face_of(managed).heartbeat(PodHeartbeat("agent-0", "", 1_900_000_000_000, "10.0.0.7", 8081))
    assert await managed.world.status_of("agent-0") == "available"


async def test_without_valkey_heartbeats_are_written_to_postgres(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    async with (
        TcpProxy.before(redis_url) as way,
        open_managed(database_url, way.url, key_prefix, ALL_STANDARD) as managed,
    ):
        await managed.world.beat("agent-0", sequence=1)
        way.refuse()
        way.cut()
        said = PodHeartbeat("agent-0", "boot-1", 2, "10.0.0.1", 8080, calls=("call-1",))
        heard = await face_of(managed).heartbeat(said)
        new = await face_of(managed).heartbeat(PodHeartbeat("agent-1", "boot-1", 1, "10.0.0.1", 8080))

        assert isinstance(heard, HeartbeatResult)
        assert isinstance(new, HeartbeatResult)
        async with managed.database.connection() as conn:
            pods = {pod.name: (pod.sequence, list(pod.named)) for pod in await store.pods(conn)}
        assert pods == {"agent-0": (2, ["call-1"]), "agent-1": (1, [])}
        await way.heal()


async def test_heartbeats_are_written_to_postgres_and_named_calls_have_joined(
    managed: Managed,
) -> None:
    await managed.world.beat("agent-0")
    await managed.allocate("call-1")
    running = asyncio.create_task(managed.world.registry.run())
    await face_of(managed).heartbeat(
        PodHeartbeat("agent-0", "boot-1", 1_000, "10.0.0.1", 8080, calls=("call-1",), interval_s=7)
    )

    async def is_written() -> bool:
        async with managed.database.connection() as conn:
            joined = await conn.fetchval("SELECT joined_at IS NOT NULL FROM allocations")
            (pod,) = await store.pods(conn)
        return bool(joined) and (pod.sequence, list(pod.named), pod.interval_s) == (1_000, ["call-1"], 7)

    await eventually(is_written)
    managed.world.registry.stop()
    await running


async def test_a_draining_heartbeat_ends_reservations_on_its_pod_at_once(managed: Managed) -> None:
    await managed.world.beat("agent-0")
    await face_of(managed).heartbeat(PodHeartbeat("agent-0", "boot-1", 1_000, "10.0.0.1", 8080, leaving=True))
    async with managed.database.connection() as conn:
        assert not await conn.fetchval("SELECT pod_takes(p, true) FROM pods AS p")


async def test_a_silent_pod_takes_answered_calls_and_no_reservation(managed: Managed) -> None:
    await managed.world.beat("agent-0")
    await managed.world.fall_silent("agent-0")
    async with managed.database.connection() as conn:
        takes = await conn.fetchrow(
            "SELECT pod_takes(p, true) AS dial, pod_takes(p, false) AS call FROM pods AS p"
        )
    assert takes is not None
    assert (takes["dial"], takes["call"]) == (False, True)


async def test_an_ended_call_in_a_heartbeat_is_joined_before_the_heartbeat_counts(managed: Managed) -> None:
    """A short call is over before a heartbeat names it, and its release may be undone by a crash of Postgres."""
    world, database = managed.world, managed.database
    first = beat("b")
    number = await number_of(database, first)
    async with database.connection() as conn:
        await conn.execute(
            "INSERT INTO allocations (id, has_attempt, call, pod, slot, incarnation, begun_at, ended_at)"
            " VALUES (gen_random_uuid(), true, 'CA1', 'agent-0', 1, $1, now(), now())",
            number,
        )
        # Whoever hears of the pod looks at the call within the same statement.
        await conn.execute(
            "CREATE FUNCTION seen() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF EXISTS (SELECT FROM allocations WHERE joined_at IS NULL) THEN RAISE 'heard too early'; END IF;"
            " RETURN NULL; END $$;"
            "CREATE TRIGGER seen AFTER UPDATE OF heard_at ON pods FOR EACH ROW EXECUTE FUNCTION seen()"
        )
    world.registry.enqueue(replace(first, sequence=2, ended=("CA1",)), number)
    assert await world.registry.write() == 1
    async with database.connection() as conn:
        assert await conn.fetchval("SELECT joined_at FROM allocations") is not None


async def test_a_router_stopped_while_it_writes_heartbeats_blocks_no_other_router(
    managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its two statements, and it stays there: another router writes all the same."""
    advanced, goes_on = asyncio.Event(), asyncio.Event()
    advance = store.mark_receiving

    async def stopped_after(conn: Connection) -> None:
        await advance(conn)
        if not advanced.is_set():
            advanced.set()
            await goes_on.wait()

    monkeypatch.setattr(store, "mark_receiving", stopped_after)
    first = beat("b")
    number = await number_of(managed.database, first)
    stopped = asyncio.create_task(managed.world.registry.write())
    await advanced.wait()
    other = PodRegistry(managed.database, managed.world.router_bus, managed.config)
    other.enqueue(replace(first, sequence=2), number)
    async with asyncio.timeout(10):
        assert await other.write() == 1
    goes_on.set()
    await stopped


async def test_an_ended_call_in_a_heartbeat_is_written_again_after_an_outage_of_postgres(
    managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash may undo what was written; the pod says it again, and within 4 s nothing is written twice otherwise."""
    first = beat("b")
    number = await number_of(managed.database, first)
    written: list[Sequence[tuple[str, str]]] = []
    join, write_beats = store.join_calls, store.write_beats

    async def joined(conn: Connection, calls: Sequence[tuple[str, str]]) -> None:
        written.append(calls)
        await join(conn, calls)

    async def broken(*_: object) -> None:
        raise ConnectionError("Postgres is gone")

    monkeypatch.setattr(store, "join_calls", joined)
    registry = managed.world.registry
    for sequence in (2, 3):
        registry.enqueue(replace(first, sequence=sequence, ended=("CA1",)), number)
        assert await registry.write() == 1
    assert written == [[("agent-0", "CA1")]]
    monkeypatch.setattr(store, "write_beats", broken)
    registry.enqueue(replace(first, sequence=4, ended=("CA1",)), number)
    with pytest.raises(ConnectionError):
        await registry.write()
    monkeypatch.setattr(store, "write_beats", write_beats)
    assert await registry.write() == 1
    assert written == [[("agent-0", "CA1")]] * 2
