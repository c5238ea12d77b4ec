"""The pool manager: what it brings back from Postgres, what it puts right, and what it leaves alone."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from tests.support.router.managed import Managed, open_managed
from tests.support.router.world import RouterWorld
from tests.support.world import ALL_STANDARD
from trunkline.bus import router, router_manager
from trunkline.bus.router import BeatRule, WaitRule
from trunkline.bus.router_manager import ProjectedPod, TermLost
from trunkline.router import pool_manager as managing
from trunkline.routing import Pod
from trunkline.settings.tiers import parse_tiers
from trunkline.store import pods as pods_store
from trunkline.store import router as store


@pytest.fixture
async def managed(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Managed]:
    async with open_managed(database_url, redis_url, key_prefix) as managed:
        yield managed


@pytest.fixture
async def plain(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Managed]:
    """One tier for everybody."""
    async with open_managed(database_url, redis_url, key_prefix, ALL_STANDARD) as managed:
        yield managed


async def test_a_lost_projection_is_rebuilt_from_postgres_without_heartbeats(managed: Managed) -> None:
    pods = await managed.pods(5)
    calls = {call: await managed.allocate(call) for call in ("call-1", "call-2")}
    tiers = [await managed.world.tier_of(pod) for pod in pods]

    await managed.world.flush()
    assert await managed.world.ask("call-3", is_alone=False) is None
    await managed.pass_by(1)

    assert [await managed.world.tier_of(pod) for pod in pods] == tiers
    assert {call: await managed.allocate(call) for call in calls} == calls
    free = {await managed.allocate(f"more-{number}") for number in range(9)}
    assert free - {"none"} == set(pods) - {"agent-0", *calls.values()}


async def test_a_reserved_slot_is_rebuilt_as_reserved(plain: Managed) -> None:
    await plain.pods(2)
    dial = await plain.world.keep("dial", "agent-0")

    await plain.world.flush()
    await plain.pass_by(1)

    assert await plain.world.status_of("agent-0") == "kept"
    assert await plain.world.client.hgetall(plain.world.keys.pod_slots("agent-0")) == {"1": str(dial)}
    assert set(await plain.world.available("standard")) == {"agent-1"}


async def test_after_a_restart_of_postgres_an_idle_pod_needs_a_heartbeat_first(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    """What was given in the last moment before a crash may be missing in Postgres."""
    async with open_managed(database_url, redis_url, key_prefix, ALL_STANDARD) as young:
        await young.pods(2)
        busy = await young.allocate("call-1")
        idle = "agent-1" if busy == "agent-0" else "agent-0"
        young.manager._pools._young_s = 3600

        await young.world.flush()
        await young.pass_by(1)

        assert await young.allocate("call-2") == "none"
        assert await young.allocate("call-1") == busy
        await young.world.beat(idle)
        assert await young.allocate("call-2") == idle


async def test_a_promoted_replica_that_lacks_writes_is_rebuilt_at_once(plain: Managed) -> None:
    """It shows the first call as live, which has ended, and not the second one."""
    await plain.pods(3)
    first = await plain.allocate("call-1")
    stale = {key: await plain.world.client.dump(key) for key in await _keys(plain)}
    await plain.world.release("call-1")
    second = await plain.allocate("call-2")
    kept = next(pod for pod in ("agent-0", "agent-1", "agent-2") if pod not in (first, second))
    await plain.world.keep("dial", kept)
    await plain.world.flush()
    for key, value in stale.items():
        await plain.world.client.restore(key, 0, value)
    await plain.world.client.hset(plain.world.keys.epoch, "run_id", "of the one before")
    await plain.world.client.delete(plain.world.keys.unproven)

    assert await plain.world.ask("call-3", is_alone=False) is None
    await plain.pass_by(1)

    assert set(await plain.world.available("standard")) == {first}
    assert await plain.world.client.exists(plain.world.keys.call("call-1")) == 0
    assert await plain.allocate("call-2") == second


async def test_a_tombstone_survives_the_loss_of_the_projection(managed: Managed) -> None:
    await managed.pods(3)
    await managed.allocate("call-1")
    await managed.world.release("call-1")

    await managed.world.flush()
    await managed.pass_by(1)

    assert await managed.allocate("call-1") == "ended"


async def test_without_postgres_the_projection_is_rebuilt_from_heartbeats(managed: Managed) -> None:
    await managed.pods(3)
    await managed.world.flush()
    await managed.database.close()
    await managed.manager.run_once()
    world = RouterWorld(managed.world.bus, managed.world.keys)

    for number in range(3):
        said = ["call-1"] if number == 2 else []
        await world.beat(f"agent-{number}", said, rule=BeatRule(settle_ms=0), is_alone=True)

    assert await world.ask("call-1", is_alone=False) is None
    assert await world.allocate("call-1") == "agent-2"
    assert await world.allocate("call-2") != "agent-2"


async def test_without_postgres_an_idle_pod_is_allocated_only_after_the_settle_time(
    managed: Managed,
) -> None:
    """A call that was given a pod, not written yet, and not connected yet."""
    world = RouterWorld(managed.world.bus, managed.world.keys)
    await managed.database.close()
    await world.flush()
    late = BeatRule(settle_ms=3_600_000, tiers="standard=e|1|1")

    heard = [await world.beat(f"agent-{n}", rule=late, is_alone=True) for n in range(3)]

    assert await world.allocate("call-2") == "none"
    assert all(answer.again_in_s > 3_000 for answer in heard)
    await world.beat("agent-2", rule=BeatRule(settle_ms=0), is_alone=True)
    assert await world.allocate("call-2") == "agent-2"


async def test_a_run_without_pods_to_change_needs_no_postgres(managed: Managed) -> None:
    await managed.pods(2)
    await managed.database.close()
    with capture_logs() as logs:
        await managed.pass_by(1)
    assert [line for line in logs if line["event"] == "router.unmanaged"] == []


async def test_a_projection_made_by_heartbeats_is_rebuilt_when_postgres_returns(plain: Managed) -> None:
    await plain.pods(2)
    pool = plain.database.warm_pool
    await plain.world.flush()
    plain.database.warm_pool = _Away()  # type: ignore[assignment]  # stands for a Postgres that is away
    await plain.pass_by(1)
    assert await plain.world.ask("call-1", is_alone=False) is None
    plain.database.warm_pool = pool

    await plain.pass_by(1)

    assert set(await plain.world.available("standard")) == {"agent-0", "agent-1"}


async def test_an_unproven_proposal_without_a_row_is_freed_and_one_with_a_row_is_proven(
    plain: Managed,
) -> None:
    await plain.pods(2)
    world = plain.world
    lost, dial = world.allocation_of("lost"), world.allocation_of("dial")
    ids = [str(lost), str(dial)]
    kept = await router.propose_slots(world.router_bus, [(lost, "acme"), (dial, "acme")])
    assert kept is not None
    await world.keep("dial", kept.slots[dial].pod)

    await plain.pass_by(1)
    assert await world.available("standard") == {}, "5 s have not passed"
    for one in ids:
        await world.client.zincrby(world.keys.unproven, -6000, one)
    await plain.pass_by(1)

    assert set(await world.available("standard")) == {"agent-0"}
    assert await world.client.zcard(world.keys.unproven) == 0
    assert await world.client.hgetall(world.keys.pod_slots("agent-1")) == {"1": ids[1]}


async def test_an_occupied_slot_without_a_row_is_freed_and_one_with_a_row_stays_reserved(
    plain: Managed,
) -> None:
    await plain.pods(2)
    world = plain.world
    row = await world.keep("dial", "agent-0")
    ghost = world.allocation_of("ghost")
    await router.occupy(world.router_bus, "agent-0", 1, row)
    await router.occupy(world.router_bus, "agent-1", 1, ghost)
    for one in (row, ghost):
        await world.client.zincrby(world.keys.unproven, -2500, str(one))

    await plain.pass_by(1)

    assert set(await world.available("standard")) == {"agent-1"}
    assert await world.client.zscore(world.keys.kept, str(row)) is not None, "as a slot that is kept"


async def test_a_call_missing_in_valkey_is_restored_from_postgres(plain: Managed) -> None:
    await plain.pods(2)
    pod = await plain.allocate("call-1")
    client, keys = plain.world.client, plain.world.keys
    await client.delete(keys.call("call-1"), keys.lease(pod))

    await plain.pass_by(31)

    assert await client.hget(keys.call("call-1"), "pod_name") == pod
    assert await plain.open_calls() == ["call-1"]
    assert await plain.world.status_of(pod) == "allocated"


async def test_a_call_missing_in_postgres_is_freed_in_valkey(plain: Managed) -> None:
    await plain.pods(1)
    pod = await plain.allocate("call-1")
    await plain.world.end("call-1")
    await plain.world.client.delete(plain.world.keys.unproven)

    await plain.pass_by(31)

    assert await plain.world.available("standard") == {pod: 0}
    assert await plain.world.client.exists(plain.world.keys.call("call-1")) == 0


async def test_a_call_allocated_during_a_reconcile_is_left_alone(plain: Managed) -> None:
    """Postgres was read before the row was in."""
    await plain.pods(1)
    answer = await RouterWorld(plain.world.bus, plain.world.keys).ask("call-1")

    await plain.pass_by(31)

    assert answer.pod == "agent-0"
    assert await plain.world.available("standard") == {}


async def test_a_pod_missing_in_postgres_is_removed_unless_it_registered_without_postgres(
    plain: Managed,
) -> None:
    await plain.pods(2)
    await plain.execute("DELETE FROM pods WHERE name = 'agent-0'")
    alone = RouterWorld(plain.world.bus, plain.world.keys)
    await alone.beat("agent-9", is_alone=True)

    await plain.pass_by(31)

    assert await plain.world.tier_of("agent-0") is None
    assert await plain.world.tier_of("agent-9") == "standard"


async def test_a_pod_registered_without_postgres_gets_its_incarnation_at_its_next_heartbeat(
    plain: Managed,
) -> None:
    alone = RouterWorld(plain.world.bus, plain.world.keys)
    await alone.beat("agent-9", is_alone=True)
    assert await plain.world.tiers() == {}

    await plain.world.beat("agent-9", sequence=9)

    assert await plain.world.tiers() == {"agent-9": "standard"}
    number = await plain.world.client.hget(plain.world.keys.pod("agent-9"), "incarnation")
    assert int(number) > 0


async def test_a_leader_logs_its_takeover_once_per_term(managed: Managed) -> None:
    with capture_logs() as logs:
        for term in (None, 2, 2, None, 3):
            managed.leading.term = term
            await managed.pass_by(1)
    told = [line for line in logs if line["event"] == "router.took_over"]
    assert [line["term"] for line in told] == [2, 3]
    assert all(line["is_leader"] for line in told)


async def test_every_write_of_an_older_term_is_refused(managed: Managed) -> None:
    await managed.pods(3)
    old = router_manager.Term(managed.world.router_bus, *await _term(managed, 1))
    await managed.world.begin(term=2)
    before = await _dump(managed.world)
    pod = ProjectedPod(Pod("agent-9", 99, "gold"))

    for write in (
        old.remove("agent-0"),
        old.put([pod], lease_ttl_s=60),
        old.unproven(),
        old.prove([], ["a"], [], lease_ttl_s=60),
        old.publish_tiers(["standard"], {"standard": "e|9|1"}),
        old.merchants({"acme": "{}"}, "0"),
        old.bury({"call-9": 60}),
        old.set_version("9"),
        old.rebuilt(),
    ):
        with pytest.raises(TermLost):
            await write
    assert await _dump(managed.world) == before


async def test_a_leader_is_refused_after_the_projection_was_lost_until_it_rebuilds(managed: Managed) -> None:
    term = router_manager.Term(managed.world.router_bus, *await _term(managed, 1))
    await managed.world.flush()
    with pytest.raises(TermLost):
        await term.publish_tiers(["standard"], {"standard": "e|9|1"})
    await managed.pass_by(1)
    assert await managed.world.client.hexists(managed.world.keys.tiers, "gold") == 1


async def test_a_merchant_config_changed_in_valkey_is_written_to_postgres(managed: Managed) -> None:
    await managed.pods(5)
    await managed.world.configure("acme", tier="gold")
    await managed.pass_by(61)

    await managed.world.flush()
    await managed.pass_by(1)
    assert await managed.world.client.hget(managed.world.keys.merchant_config, "acme") == '{"tier": "gold"}'

    await managed.world.client.hdel(managed.world.keys.merchant_config, "acme")
    await managed.pass_by(61)
    await managed.world.flush()
    await managed.pass_by(1)
    assert await managed.world.client.hexists(managed.world.keys.merchant_config, "acme") == 0


async def test_a_merchant_config_changed_in_postgres_becomes_live(managed: Managed) -> None:
    async with managed.database.connection() as conn:
        await store.set_merchant(conn, "acme", '{"tier":"gold"}')
    await managed.pass_by(61)
    assert await managed.world.client.hget(managed.world.keys.merchant_config, "acme") == '{"tier":"gold"}'
    async with managed.database.connection() as conn:
        assert await store.remove_merchant(conn, "acme")
    await managed.pass_by(61)
    assert await managed.world.client.hexists(managed.world.keys.merchant_config, "acme") == 0


async def test_a_call_that_its_pod_never_names_is_released_when_its_carrier_ended_it(
    managed: Managed,
) -> None:
    await managed.pods(3)
    pod = await managed.allocate("call-1")
    await _given_long_ago(managed, pod)

    managed.over["call-1"] = False
    await managed.pass_by(31)
    assert await managed.allocate("call-1") == pod

    managed.over["call-1"] = True
    await managed.pass_by(31)
    assert await managed.allocate("call-1") == "ended"
    assert await managed.open_calls() == []


async def test_a_call_that_its_pod_never_names_and_no_carrier_knows_loses_its_pod(
    plain: Managed,
) -> None:
    await plain.pods(1)
    pod = await plain.allocate("call-1")
    await _given_long_ago(plain, pod)

    await plain.pass_by(31)

    assert await plain.world.live() == {"call-1": None}
    assert await plain.world.available("standard") == {pod: 0}


async def test_a_call_that_moved_while_its_carrier_was_asked_keeps_its_new_pod(plain: Managed) -> None:
    """While the carrier was asked the call lost its pod, and got another one."""
    await plain.pods(2)
    first = await plain.allocate("call-1")
    other = "agent-1" if first == "agent-0" else "agent-0"
    await _given_long_ago(plain, first)

    async def moved_meanwhile(_call: str) -> bool | None:
        await plain.execute(
            "UPDATE allocations AS a SET pod = p.name, incarnation = p.incarnation FROM pods AS p WHERE p.name = $1",
            other,
        )
        return None

    plain.manager._is_over = moved_meanwhile
    await plain.pass_by(31)

    assert await plain.world.live() == {"call-1": other}


async def test_a_call_named_while_its_carrier_was_asked_keeps_its_pod(plain: Managed) -> None:
    await plain.pods(1)
    pod = await plain.allocate("call-1")
    await _given_long_ago(plain, pod)

    async def came_meanwhile(_call: str) -> bool | None:
        await plain.world.beat(pod, ["call-1"])
        return True

    plain.manager._is_over = came_meanwhile
    await plain.pass_by(31)

    assert await plain.world.live() == {"call-1": pod}
    assert await plain.allocate("call-1") == pod


async def test_a_call_whose_release_was_lost_ends_when_its_pod_has_not_named_it_for_long(
    plain: Managed,
) -> None:
    """By a crash of Postgres, or with the router process that had heard the call named."""
    await plain.pods(2)
    lost, talks = await plain.allocate("call-1"), await plain.allocate("call-2")
    for pod, call in ((lost, "call-1"), (talks, "call-2")):
        await plain.world.beat(pod, [call])
    await plain.execute(
        "UPDATE allocations SET begun_at = begun_at - interval '2 min', joined_at = joined_at - interval '2 min'"
    )
    await plain.execute("UPDATE pods SET named = '{}', heard_at = now() WHERE name = $1", lost)

    await plain.pass_by(31)

    assert await plain.world.live() == {"call-2": talks}
    assert await plain.allocate("call-1") == "ended"


async def test_heartbeats_without_a_connecting_call_do_not_take_its_pod(managed: Managed) -> None:
    await managed.pods(3)
    pod = await managed.allocate("call-1")
    await managed.world.beat(pod)
    await managed.world.beat(pod)
    managed.over["call-1"] = True
    await managed.pass_by(31)
    assert await managed.allocate("call-1") == pod


async def test_a_call_without_an_attempt_ends_when_its_pod_names_it_no_more(plain: Managed) -> None:
    """Its release was lost. Of a call with an attempt the carrier says when it is over."""
    await plain.pods(2)
    pod = await plain.allocate("call-1")
    dialled = await plain.allocate("call-2")
    await plain.execute("UPDATE allocations SET has_attempt = true WHERE call = 'call-2'")
    await plain.world.beat(pod, ["call-1"])
    await plain.world.beat(dialled, ["call-2"])
    await plain.world.beat(pod)
    await plain.world.beat(dialled)

    assert await plain.open_calls() == ["call-2"]
    assert set(await plain.world.available("standard")) == {pod}


async def test_a_pod_that_names_a_released_call_is_ending_and_reported(plain: Managed) -> None:
    await plain.pods(2)
    pod = await plain.allocate("call-1")
    await plain.world.beat(pod, ["call-1"])
    await plain.world.release("call-1")

    await plain.pass_by(31)
    assert await plain.world.status_of(pod) == "ending"
    assert plain.told.hanging == {}
    await plain.pass_by(managing.ENDING_S + 1)

    assert plain.told.hanging == {pod: ["call-1"]}
    assert pod not in await plain.world.available("standard")


async def test_an_ended_call_is_not_revived_by_a_pod_that_still_names_it(plain: Managed) -> None:
    await plain.pods(1)
    pod = await plain.allocate("call-1")
    await plain.world.beat(pod, ["call-1"])
    await plain.world.release("call-1")
    await plain.world.client.delete(plain.world.keys.ended("call-1"))

    await plain.world.beat(pod, ["call-1"])
    assert await plain.world.status_of(pod) == "ending"
    assert await plain.world.client.exists(plain.world.keys.call("call-1")) == 0
    await plain.pass_by(61)

    assert await plain.world.status_of(pod) == "ending"
    assert await plain.world.client.exists(plain.world.keys.call("call-1")) == 0
    assert await plain.open_calls() == []
    await plain.world.beat(pod)
    assert await plain.world.available("standard") == {pod: 0}


async def test_a_reset_frees_a_pod_and_returns_the_call_that_it_still_names(
    plain: Managed,
) -> None:
    await plain.pods(1)
    pod = await plain.allocate("call-1")
    await plain.world.beat(pod, ["call-1"])

    done = await plain.world.face.reset(pod)

    assert done is not None
    assert (done.calls, done.still_named, done.status) == (["call-1"], ["call-1"], "available")
    assert await plain.open_calls() == []
    # Its agent goes on naming the call: that counts for nothing until it lets go.
    await plain.world.beat(pod, ["call-1"])
    await plain.pass_by(31)
    assert await plain.world.available("standard") == {pod: 0}
    assert await plain.allocate("call-2") == pod
    await plain.world.release("call-2")
    await plain.world.beat(pod)
    await plain.world.beat(pod, ["call-1"])
    assert await plain.world.status_of(pod) == "ending", "named anew"


async def test_a_force_reset_in_valkey_frees_the_pod_and_ends_its_allocation(managed: Managed) -> None:
    await managed.pods(3)
    pod = await managed.allocate("call-1")
    client, keys = managed.world.client, managed.world.keys
    await client.delete(keys.lease(pod))
    await client.delete(keys.call("call-1"))
    await client.hset(keys.pod(pod), "status", "available")
    await client.hdel(keys.pod(pod), "allocated_call_sid", "allocated_at")

    await managed.pass_by(31)

    assert pod in await managed.world.available("standard")
    await managed.pass_by(1)
    assert await managed.open_calls() == []
    async with managed.database.connection() as conn:
        assert await conn.fetchval("SELECT why FROM allocations") == "reset"


async def test_a_heartbeat_keeps_a_force_reset_made_in_valkey(plain: Managed) -> None:
    """It would otherwise write its own status over that of the operator."""
    await plain.pods(1)
    pod = await plain.allocate("call-1")
    client, keys = plain.world.client, plain.world.keys
    await client.delete(keys.lease(pod), keys.call("call-1"))
    await plain.world.beat(pod)
    await client.hset(keys.pod(pod), "status", "available")
    await plain.world.beat(pod)

    assert await plain.world.available("standard") == {pod: 0}
    await plain.pass_by(31)
    assert await plain.open_calls() == []
    assert await plain.world.available("standard") == {pod: 0}


async def test_a_force_reset_of_a_shared_pod_leaks_no_slot(managed: Managed) -> None:
    await managed.pods(2)
    client, keys = managed.world.client, managed.world.keys
    assert await managed.allocate("call-1") == "agent-1"
    await managed.allocate("call-2")
    await client.delete(keys.call("call-1"))
    await client.hset(keys.pod("agent-1"), "status", "available")

    await managed.pass_by(31)

    assert await managed.world.available("basic") == {"agent-1": 1}
    assert await client.get(keys.lease("agent-1")) == "call-2"


async def test_a_deleted_projection_is_rebuilt_with_pools_and_calls(managed: Managed) -> None:
    await managed.pods(5)
    await managed.allocate("call-1")
    sizes = await managed.world.sizes()
    await managed.world.flush()
    await managed.pass_by(1)
    assert await managed.world.sizes() == sizes
    counts = await router.counts(managed.world.router_bus)
    assert counts.calls == 1


async def test_a_drain_survives_the_loss_of_the_projection_and_ends_with_its_key(managed: Managed) -> None:
    await managed.pods(3)
    assert await managed.world.face.drain("agent-2") is not None
    await managed.world.flush()
    await managed.pass_by(1)
    assert await managed.world.available("standard") == {}

    await managed.world.client.delete(managed.world.keys.draining("agent-2"))
    await managed.pass_by(31)

    assert "agent-2" in await managed.world.available("standard")
    async with managed.database.connection() as conn:
        assert await conn.fetchval("SELECT draining_until FROM pods WHERE name = 'agent-2'") is None


async def test_a_drain_written_in_valkey_is_written_to_postgres(plain: Managed) -> None:
    await plain.pods(1)
    await plain.world.client.set(plain.world.keys.draining("agent-0"), "true", ex=360)

    await plain.pass_by(31)

    assert await plain.world.available("standard") == {}
    async with plain.database.connection() as conn:
        assert await conn.fetchval("SELECT draining_until > now() FROM pods")


async def test_a_pod_removed_from_or_added_to_a_pool_set_by_hand_is_repaired(managed: Managed) -> None:
    await managed.pods(4)
    client, keys = managed.world.client, managed.world.keys
    await client.srem(keys.available("standard"), "agent-2")
    await client.sadd(keys.available("standard"), "agent-2-ghost")
    await client.delete(keys.order("standard"))

    await managed.pass_by(31)

    assert "agent-2" in await managed.world.available("standard")
    assert set(await client.zrange(keys.order("standard"), 0, -1)) == {"agent-2", "agent-3"}
    free = {await managed.allocate(f"call-{n}") for n in range(9)}
    assert free <= {"agent-1", "agent-2", "agent-3", "none"}


async def test_a_projection_being_deleted_key_by_key_ends_no_call(plain: Managed) -> None:
    """As the full reset of the operations sheet: key by key, the epoch's own among the last."""
    await plain.pods(12)
    calls = {f"call-{number}": await plain.allocate(f"call-{number}") for number in range(12)}
    client, keys = plain.world.client, plain.world.keys
    for call, pod in calls.items():
        await client.delete(
            keys.call(call), keys.pod_calls(pod), keys.lease(pod), keys.pod(pod), keys.pod_tier(pod)
        )
    await client.delete(keys.assigned("standard"), keys.available("standard"), keys.metadata, keys.calls)

    await plain.pass_by(61)

    assert await plain.world.live() == calls
    assert len(await plain.world.tiers()) == 12
    assert {call: await plain.allocate(call) for call in calls} == calls


async def test_pods_move_to_a_new_tier_two_seconds_after_they_stopped_taking_calls(plain: Managed) -> None:
    await plain.pods(3)
    busy = await plain.allocate("call-1")
    _retarget(plain, '{"gold": {"target": 1}, "standard": {"target": 1}}')

    await plain.pass_by(61)
    changing = [
        pod for pod in ("agent-0", "agent-1", "agent-2") if pod not in await plain.world.available("standard")
    ]
    moving = next(pod for pod in changing if pod != busy)
    assert await plain.world.tier_of(moving) == "standard", "a dial in flight may have it"
    assert await plain.world.status_of(moving) == "unready"

    await plain.take_time()
    await plain.pass_by(1)
    assert await plain.world.tier_of(moving) == "gold"
    assert set(await plain.world.available("gold")) == {moving}
    assert (await plain.world.tiers())[moving] == "gold"


async def test_a_pod_that_is_to_move_waits_for_its_reservation_to_end(plain: Managed) -> None:
    await plain.pods(1)
    _retarget(plain, '{"gold": {"target": 1}, "standard": {"target": 0}}')
    await plain.pass_by(61)
    await plain.world.keep("dial", "agent-0")
    await plain.take_time()

    await plain.pass_by(1)
    assert (await plain.world.tiers())["agent-0"] == "standard"

    await plain.execute("UPDATE allocations SET ended_at = clock_timestamp()")
    await plain.pass_by(1)
    assert (await plain.world.tiers())["agent-0"] == "gold"


async def test_a_leaving_pod_fills_no_target_and_is_not_moved(plain: Managed) -> None:
    await plain.pods(2)
    await plain.world.beat("agent-0", leaving=True)
    _retarget(plain, '{"merchant:9shines": {"target": 1}, "standard": {"target": 1}}')

    await plain.pass_by(61)
    await plain.take_time()
    await plain.pass_by(1)
    await plain.world.beat("agent-2")

    tiers = await plain.world.tiers()
    assert tiers["agent-0"] == "standard"
    assert "merchant:9shines" in (tiers["agent-1"], tiers["agent-2"])


async def test_a_leaving_pods_place_in_its_tier_goes_to_the_next_pod(managed: Managed) -> None:
    await managed.pods(3)
    assert await managed.world.tier_of("agent-0") == "gold"
    await managed.world.beat("agent-0", leaving=True)

    await managed.world.beat("agent-3")

    assert await managed.world.tier_of("agent-3") == "gold"


async def test_a_lowered_max_concurrent_applies_when_no_call_is_above_it(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    config = '{"standard": {"type": "shared", "target": 1, "max_concurrent": %d}}'
    async with open_managed(database_url, redis_url, key_prefix, config % 3) as shared:
        await shared.pods(1)
        for call in ("call-1", "call-2"):
            await shared.allocate(call)
        _retarget(shared, config % 1)

        await shared.pass_by(61)
        await shared.take_time()
        await shared.pass_by(1)
        assert await _most(shared) == 3
        await shared.world.release("call-2")
        await shared.pass_by(1)
        assert await _most(shared) == 1

        _retarget(shared, config % 5)
        await shared.pass_by(61)
        assert await _most(shared) == 5


async def test_an_old_pod_that_restarts_does_not_make_its_version_the_newest(plain: Managed) -> None:
    await plain.world.beat("agent-0", version="1.0")
    await plain.world.beat("agent-1", version="2.0")
    await plain.world.beat("agent-0", boot="boot-2", sequence=1, version="1.0")
    await plain.pass_by(31)

    assert await plain.allocate("call-1") == "agent-1"
    await plain.world.flush()
    await plain.pass_by(1)
    assert await plain.world.client.get(plain.world.keys.version) == "2.0"


async def test_a_pod_silent_for_too_long_is_removed_and_its_calls_get_other_pods(plain: Managed) -> None:
    await plain.pods(2)
    pod = await plain.allocate("call-1")
    await plain.world.fall_silent(pod)

    await plain.pass_by(6)

    assert await plain.world.tier_of(pod) is None
    assert pod not in await plain.world.tiers()
    assert await plain.world.live() == {"call-1": None}
    assert await plain.allocate("call-1") != pod


async def test_a_pod_that_beats_while_it_is_being_removed_keeps_its_call(
    plain: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look that found it silent and the removal: in Postgres, and in Valkey after Postgres."""
    await plain.pods(1)
    pod = await plain.allocate("call-1")
    remove = pods_store.remove

    async def speaks_before(*args: object, **more: object) -> object:
        await plain.world.beat(pod, ["call-1"])
        return await remove(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(pods_store, "remove", speaks_before)
    await plain.world.fall_silent(pod)
    await plain.pass_by(6)

    assert await plain.world.live() == {"call-1": pod}
    assert await plain.allocate("call-1") == pod


async def test_a_removed_pod_whose_heartbeat_names_its_call_gets_it_back(plain: Managed) -> None:
    await plain.pods(1)
    pod = await plain.allocate("call-1")
    await plain.world.fall_silent(pod)
    await plain.pass_by(6)
    assert await plain.world.live() == {"call-1": None}

    await plain.world.beat(pod, ["call-1"])
    await plain.pass_by(31)

    assert await plain.world.live() == {"call-1": pod}
    assert await plain.world.client.hget(plain.world.keys.call("call-1"), "pod_name") == pod


async def test_silent_pods_are_found_though_the_clock_of_valkey_was_set_back(plain: Managed) -> None:
    await plain.pods(2)
    client, keys = plain.world.client, plain.world.keys
    seconds, _ = await client.time()
    ahead = (seconds + 3600) * 1000
    await client.hset(keys.hearing, mapping={"since": ahead, "ran": ahead})
    await client.zadd(keys.heartbeats, {"agent-0": ahead, "agent-1": ahead})

    await plain.pass_by(6)

    assert int(await client.hget(keys.hearing, "since")) <= (seconds + 60) * 1000
    assert max(score for _, score in await client.zrange(keys.heartbeats, 0, -1, withscores=True)) < ahead


async def test_silent_pods_are_found_though_the_clock_of_postgres_was_set_back(plain: Managed) -> None:
    await plain.pods(1)
    await plain.execute("UPDATE pods SET heard_at = heard_at + interval '1 hour'")
    await plain.execute(
        "UPDATE pod_hearing SET since = since + interval '1 hour', ran_at = ran_at + interval '1 hour'"
    )

    await plain.world.written()

    async with plain.database.connection() as conn:
        assert await conn.fetchval("SELECT heard_at < clock_timestamp() + interval '1 second' FROM pods")
        assert await conn.fetchval("SELECT since <= clock_timestamp() FROM pod_hearing")


async def test_after_a_gap_in_receiving_heartbeats_silence_counts_anew(plain: Managed) -> None:
    await plain.pods(1)
    await plain.execute("UPDATE pods SET heard_at = heard_at - interval '1 hour'")
    await plain.execute(
        "UPDATE pod_hearing SET since = since - interval '1 hour', ran_at = ran_at - interval '6 seconds'"
    )
    is_silent = "SELECT pod_is_silent(p) FROM pods AS p"
    async with plain.database.connection() as conn:
        assert await conn.fetchval(is_silent)
        await pods_store.mark_receiving(conn)
        assert not await conn.fetchval(is_silent)


async def test_two_hundred_requests_for_a_hundred_calls_on_fifty_pods_refuse_exactly_fifty_calls(
    managed: Managed,
) -> None:
    world = RouterWorld(managed.world.bus, managed.world.keys)
    await world.begin('{"standard": {"target": 1}}', term=2)
    await world.pods(50)
    calls = [f"call-{number % 100}" for number in range(200)]
    answers = await asyncio.gather(*(world.allocate(call) for call in calls))
    pods = {call: answer for call, answer in zip(calls, answers, strict=True) if answer != "none"}
    assert answers.count("none") == 100
    assert len(pods) == len(set(pods.values())) == 50
    assert all(answer in (pods.get(call), "none") for call, answer in zip(calls, answers, strict=True))


async def test_a_merchant_config_edited_during_the_managers_read_is_kept(
    managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Postgres was read before the edit, and Valkey would be written after it."""
    gold, reads = '{"tier": "gold"}', 0
    read = store.merchants

    async def edited_meanwhile(conn: object) -> dict[str, str]:
        nonlocal reads
        reads += 1
        truth = await read(conn)  # type: ignore[arg-type]
        if reads == 1:
            async with managed.database.connection() as other:
                await store.set_merchant(other, "acme", gold)
            await router_manager.set_merchant(managed.world.router_bus, "acme", gold)
        return truth

    monkeypatch.setattr(store, "merchants", edited_meanwhile)
    await managed.pass_by(61)
    assert await managed.world.client.hgetall(managed.world.keys.merchant_config) == {"acme": gold}
    assert reads == 2


async def test_a_waiting_call_that_stopped_polling_is_removed_from_the_queue(managed: Managed) -> None:
    rule = WaitRule(most_ms=60_000, silence_ms=7000)
    assert await managed.world.allocate("call-1", wait=rule) == "hold 0"
    await managed.world.client.zadd(managed.world.keys.waiting, {"call-1": 1})
    await managed.pass_by(6)
    keys = managed.world.keys
    assert await managed.world.client.exists(keys.waiting, keys.waiters, keys.waiting_for("standard")) == 0
    assert await managed.world.client.exists(keys.waiting_merchants("standard")) == 0


async def test_a_merchant_config_changed_in_valkey_is_returned_until_postgres_has_it(
    managed: Managed,
) -> None:
    await managed.world.configure("acme", tier="gold")
    await managed.world.begin(term=2)
    told = await managed.world.term.merchants({}, "0")
    again = await managed.world.term.merchants({}, "0")
    assert told == again == {"acme": '{"tier": "gold"}'}
    assert await managed.world.term.merchants(told, "0") == {}
    await managed.world.client.hdel(managed.world.keys.merchant_config, "acme")
    assert await managed.world.term.merchants(told, "0") == {"acme": ""}
    assert await managed.world.term.merchants({}, "0") == {}


async def test_losing_all_merchant_configs_at_once_restores_them_from_postgres(managed: Managed) -> None:
    await managed.world.configure("acme", tier="gold")
    await managed.world.configure("other", tier="standard")
    await managed.pass_by(61)
    await managed.world.client.delete(managed.world.keys.merchant_config)
    await managed.pass_by(61)
    assert await managed.world.client.hlen(managed.world.keys.merchant_config) == 2


async def test_a_stale_adoption_does_not_overwrite_a_merchants_newer_config(
    managed: Managed,
) -> None:
    async with managed.database.connection() as conn:
        await store.set_merchant(conn, "acme", "new")
        await store.adopt_merchant(conn, "acme", "by hand", before="old")
        await store.adopt_merchant(conn, "acme", "", before="old")
        await store.adopt_merchant(conn, "acme", "by hand", before="")
        assert await store.merchants(conn) == {"acme": "new"}
        await store.adopt_merchant(conn, "acme", "by hand", before="new")
        assert await store.merchants(conn) == {"acme": "by hand"}
        await store.adopt_merchant(conn, "acme", "", before="by hand")
        assert await store.merchants(conn) == {}


def _retarget(managed: Managed, tier_config: str) -> None:
    """The manager of a process that was started with another config."""
    config = parse_tiers(tier_config)
    object.__setattr__(managed.manager._config, "tiers", config)


async def _most(managed: Managed) -> int:
    async with managed.database.connection() as conn:
        return int(await conn.fetchval("SELECT calls_max FROM pods"))


async def _given_long_ago(managed: Managed, pod: str) -> None:
    """A minute and more, in which its pod spoke and never named it."""
    await managed.execute("UPDATE allocations SET begun_at = begun_at - interval '2 minutes'")
    await managed.world.beat(pod)


async def _term(managed: Managed, number: int) -> tuple[str, int]:
    lead = await router_manager.lead(managed.world.router_bus, number)
    return lead.epoch, number


async def _keys(managed: Managed) -> list[str]:
    found = managed.world.client.scan_iter(match=f"{managed.world.keys.prefix}:*", count=1000)
    return [key async for key in found]


async def _dump(world: RouterWorld) -> dict[str, object]:
    found: dict[str, object] = {}
    async for key in world.client.scan_iter(match=f"{world.keys.prefix}:*", count=1000):
        found[key] = await _value(world, key)
    return found


async def _value(world: RouterWorld, key: str) -> object:
    match await world.client.type(key):
        case "hash":
            return await world.client.hgetall(key)
        case "set":
            return sorted(await world.client.smembers(key))
        case "zset":
            return await world.client.zrange(key, 0, -1, withscores=True)
        case _:
            return await world.client.get(key)


class _Away:
    def acquire(self) -> "_Away":
        raise OSError("no route to host")

    async def close(self) -> None: ...
