"""Handlers that do not end with their calls: their pods get one call fewer for each, and they are reported."""

from collections.abc import AsyncIterator

import pytest

from tests.support.dispatch.dialing import AGENTS_OURS, Dialing, open_dialing
from tests.support.router.managed import Managed, open_managed
from tests.support.world import ALL_STANDARD
from trunkline.bus import router
from trunkline.model import Slot, new_id
from trunkline.router import pool_manager as managing
from trunkline.routing import Allocation, PodHeartbeat
from trunkline.store import agents, allocations, pods
from trunkline.store.allocations import AllocationRequest
from trunkline.store.pods import TierTarget
from trunkline.telemetry import metrics
from trunkline.value import replace

ONE_SHARED = '{"standard": {"type": "shared", "target": 9, "max_concurrent": 3, "callers": 0}}'


@pytest.fixture
async def shared(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Managed]:
    async with open_managed(database_url, redis_url, key_prefix, ONE_SHARED) as managed:
        yield managed


@pytest.fixture
async def plain(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Managed]:
    async with open_managed(database_url, redis_url, key_prefix, ALL_STANDARD) as managed:
        yield managed


@pytest.fixture
async def dialing(database_url: str) -> AsyncIterator[Dialing]:
    async with open_dialing(database_url) as dialing:
        yield dialing


async def kept(managed: Managed, *dials: str) -> list[str]:
    ids = [managed.world.allocation_of(dial) for dial in dials]
    found = await router.propose_slots(managed.world.router_bus, [(one, "acme") for one in ids])
    assert found is not None
    return [found.slots[one].pod if one in found.slots else "none" for one in ids]


async def allocate(dialing: Dialing, call: str, proposal: Slot | None = None) -> Slot | None:
    async with dialing.database.connection() as conn:
        asked = AllocationRequest(new_id(), call, None, "m", proposal, 0)
        found = await allocations.allocate(conn, asked, ("standard",))
    return found.slot if isinstance(found, Allocation) else None


async def free_slots(dialing: Dialing) -> list[int]:
    rows = await dialing.database.pool.fetch("SELECT slot FROM free_pod_slots ORDER BY slot")
    return [row["slot"] for row in rows]


async def test_valkey_allocates_a_shared_pod_one_call_fewer_per_hanging_handler(shared: Managed) -> None:
    await shared.world.beat("agent-0", hanging=["call-0"])

    assert [await shared.allocate(f"call-{n}") for n in (1, 2, 3)] == ["agent-0", "agent-0", "none"]
    # A call that ends makes room for one.
    await shared.world.release("call-1", by_pod="agent-0")
    assert [await shared.allocate(f"call-{n}") for n in (4, 5)] == ["agent-0", "none"]
    # And so does a handler that ends after all.
    await shared.world.beat("agent-0", ["call-2", "call-4"])
    assert [await shared.allocate(f"call-{n}") for n in (6, 7)] == ["agent-0", "none"]


async def test_valkey_reserves_one_slot_fewer_per_hanging_handler(shared: Managed) -> None:
    await shared.world.beat("agent-0", hanging=["call-0"])

    assert await kept(shared, "d-1", "d-2", "d-3") == ["agent-0", "agent-0", "none"]


async def test_a_silent_pod_is_allocated_one_call_fewer_per_hanging_handler(shared: Managed) -> None:
    await shared.world.beat("agent-0", hanging=["call-0", "call-00"])
    await shared.world.fall_silent("agent-0")

    assert await shared.allocate("call-1") == "agent-0"
    await shared.world.client.sadd(shared.world.keys.silent("standard"), "agent-0")
    assert await shared.allocate("call-2") == "none"


async def test_hanging_handlers_are_restored_after_the_projection_is_lost(shared: Managed) -> None:
    await shared.world.beat("agent-0", hanging=["call-0"])
    await shared.world.flush()
    await shared.pass_by(1)

    assert [await shared.allocate(f"call-{n}") for n in (1, 2, 3)] == ["agent-0", "agent-0", "none"]


async def test_a_pod_whose_slots_all_hang_has_the_status_ending(plain: Managed) -> None:
    await plain.world.beat("agent-0", hanging=["call-0"])

    assert await plain.allocate("call-1") == "none"
    assert await plain.world.status_of("agent-0") == "ending"
    await plain.world.beat("agent-0")
    assert await plain.allocate("call-1") == "agent-0"


async def test_a_new_incarnation_of_a_pod_has_no_hanging_handlers(plain: Managed) -> None:
    await plain.world.beat("agent-0", hanging=["call-0"])
    await plain.world.beat("agent-0", boot="boot-2", sequence=1)

    assert await plain.allocate("call-1") == "agent-0"
    async with plain.database.connection() as conn:
        assert await conn.fetchval("SELECT hanging FROM pods") == []


async def test_a_change_of_hanging_handlers_is_written_to_postgres_with_its_heartbeat(plain: Managed) -> None:
    """Other heartbeats are written within a second."""
    await plain.world.beat("agent-0")
    for sequence, hanging in ((1_000, ("call-0",)), (1_001, ())):
        said = PodHeartbeat("agent-0", "boot-1", sequence, "10.0.0.1", 8080, interval_s=5, hanging=hanging)
        await plain.world.face.heartbeat(said)
        async with plain.database.connection() as conn:
            assert await conn.fetchval("SELECT hanging FROM pods") == [*hanging]


@pytest.mark.parametrize("boot", ["boot-1", "boot-2"])
async def test_a_registration_writes_the_pods_hanging_handlers(dialing: Dialing, boot: str) -> None:
    """As after a loss of Valkey, or as another process."""
    said = PodHeartbeat("va-0", "boot-1", 1, "10.0.0.1", 8080, interval_s=5.0)
    async with dialing.database.transaction() as tx:
        await pods.register(tx, said, [TierTarget("standard", 1, 1)], may_insert=True)
        later = replace(said, boot_id=boot, sequence=2, hanging=("CA-over",))
        await pods.register(tx, later, [], may_insert=True)
    assert await dialing.value("SELECT hanging FROM pods") == ["CA-over"]


async def test_postgres_allocates_a_shared_pod_one_call_fewer_per_hanging_handler(dialing: Dialing) -> None:
    slot = await dialing.pod("va-0", calls_max=3)
    await dialing.run("UPDATE pods SET hanging = '{CA-over}'")

    assert [await allocate(dialing, f"CA{n}") for n in range(3)] == [slot, replace(slot, no=2), None]
    await dialing.run("UPDATE pods SET hanging = '{}'")
    assert await allocate(dialing, "CA9") == replace(slot, no=3)


@pytest.mark.parametrize(("live", "free"), [([], [1, 2]), ([3], [1]), ([2], [1]), ([1], [2]), ([2, 3], [])])
async def test_free_slots_of_a_pod_with_hanging_handlers_are_its_lowest_ones(
    dialing: Dialing, live: list[int], free: list[int]
) -> None:
    """As many slots as there is room for are free, whoever looks: one more call than that violates the unique index."""
    slot = await dialing.pod("va-0", calls_max=3)
    for no in live:
        assert await allocate(dialing, f"CA{no}", replace(slot, no=no)) == replace(slot, no=no)
    await dialing.run("UPDATE pods SET hanging = '{CA-over}'")

    assert await free_slots(dialing) == free
    async with dialing.database.connection() as conn:
        picked = await allocations.free_slots(conn, {"standard": 0}, 5, 7)
    assert sorted(one.no for one in picked["standard"]) == free


async def test_postgres_refuses_a_proposed_slot_taken_up_by_a_hanging_handler(dialing: Dialing) -> None:
    slot = await dialing.pod("va-0", calls_max=3)
    await dialing.run("UPDATE pods SET hanging = '{CA-over}'")
    for no in (1, 2):
        await allocate(dialing, f"CA{no}")
    third = replace(slot, no=3)

    assert await allocate(dialing, "CA3", third) is None
    async with dialing.database.connection() as conn:
        asked = AllocationRequest(new_id(), "CA4", None, "m", third, 0)
        assert await allocations.allocate_new(conn, [asked]) == [None]
    grant = dialing.grant(await dialing.lead())
    intents = await dialing.intend(grant, slots={grant.attempt_id: third}, agents=AGENTS_OURS)
    assert intents.committed == ()


async def test_a_batch_of_dials_reserves_no_slot_taken_up_by_a_hanging_handler(dialing: Dialing) -> None:
    slot = await dialing.pod("va-0", calls_max=3)
    await dialing.run("UPDATE pods SET hanging = '{CA-over}'")
    grants = [dialing.grant(lead) for lead in await dialing.leads(3)]
    slots = {grant.attempt_id: replace(slot, no=no) for no, grant in enumerate(grants, start=1)}

    intents = await dialing.intend(*grants, slots=slots, agents=AGENTS_OURS)
    assert sorted(one.slot.no for one in intents.committed if one.slot) == [1, 2]


async def test_a_pod_with_a_live_call_beside_hanging_handlers_counts_as_capacity(dialing: Dialing) -> None:
    await allocate(dialing, "CA1", await dialing.pod("va-0", calls_max=2))
    await dialing.pod("va-1", calls_max=2)
    await dialing.run("UPDATE pods SET hanging = '{CA-over}'")
    await dialing.run("UPDATE pods SET hanging = '{CA-over,CA-past}' WHERE name = 'va-1'")
    async with dialing.database.connection() as conn:
        assert await agents.by_tier(conn) == {"standard": (2, 1)}


async def test_handlers_that_hang_for_a_minute_are_reported(plain: Managed) -> None:
    await plain.world.beat("agent-0", hanging=["call-0"], leaving=True)
    await plain.pass_by(31)
    assert plain.told.hanging == {}
    assert metrics.REGISTRY.get_sample_value("trunkline_router_ending") == 1

    await plain.pass_by(managing.ENDING_S + 1)
    assert plain.told.hanging == {"agent-0": ["call-0"]}
