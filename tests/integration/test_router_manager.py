"""The pool manager: what it brings back, what it puts right, and what it leaves alone."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from trunkline.bus import router_manager, router_views
from trunkline.bus.router import BeatRule
from trunkline.bus.router_manager import TermLost
from trunkline.router.allocator import Released
from trunkline.router.config import RouterConfig
from trunkline.router.journal import Begun, Over
from trunkline.router.journal_writer import JournalWriter
from trunkline.router.pods import Heartbeat, Pods
from trunkline.router.streams import StreamKeys
from trunkline.settings.tiers import parse_tiers
from trunkline.store import router as store
from trunkline.testing.managed_router import Managed, open_managed
from trunkline.testing.router_world import RouterWorld

BELIEVED_LATE = BeatRule(settle_ms=3_600_000)


@pytest.fixture
async def managed(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Managed]:
    async with open_managed(database_url, redis_url, key_prefix) as managed:
        yield managed


async def test_after_a_loss_every_pod_has_its_old_tier_and_busy_pods_are_busy(managed: Managed) -> None:
    pods = await managed.pods(5)
    await managed.allocate("call-1")
    await managed.allocate("call-2")
    tiers = [await managed.world.tier_of(pod) for pod in pods]
    calls = {call: await managed.world.allocate(call) for call in ("call-1", "call-2")}

    await managed.world.flush()
    await managed.pass_by(1)

    assert [await managed.world.tier_of(pod) for pod in pods] == tiers
    assert {call: await managed.world.allocate(call) for call in calls} == calls
    # Nobody is handed out before it was heard.
    assert await managed.world.allocate("call-3") == "none"
    for pod in pods:
        named = [call for call, holder in calls.items() if holder == pod]
        await managed.world.beat(pod, named, rule=BeatRule(settle_ms=0))
    free = {await managed.world.allocate(f"more-{number}") for number in range(9)}
    assert free & set(calls.values()) == set()
    assert free - {"none"} <= set(pods)


async def test_after_a_loss_an_idle_pod_is_believed_only_when_it_was_heard_long_enough_after_it(
    managed: Managed,
) -> None:
    """A call that was given a pod, not noted yet, and not connected yet: neither journal nor heartbeat knows of it."""
    await managed.pods(3)
    await managed.world.allocate("call-1")
    await managed.world.flush()
    await managed.pass_by(1)

    heard = [await managed.world.beat(f"agent-{n}", rule=BELIEVED_LATE) for n in range(3)]

    assert await managed.world.allocate("call-2") == "none"
    assert all(answer.again_ms > 3_000_000 for answer in heard)
    await managed.world.beat("agent-2", rule=BeatRule(settle_ms=0))
    assert await managed.world.allocate("call-2") == "agent-2"


async def test_a_leader_says_once_that_everything_is_in_order(managed: Managed) -> None:
    with capture_logs() as logs:
        for term in (None, 2, 2, None, 3):
            managed.leading.term = term
            await managed.pass_by(1)
    assert [line["term"] for line in logs if line["event"] == "router.took_over"] == [2, 3]


async def test_the_first_heartbeat_of_a_boot_is_believed_at_once(managed: Managed) -> None:
    await managed.pods(3)
    await managed.world.flush()
    await managed.pass_by(1)
    await managed.world.beat("agent-2", boot="new", sequence=1, rule=BELIEVED_LATE)
    assert await managed.world.allocate("call-1") == "agent-2"


async def test_a_tombstone_survives_a_loss(managed: Managed) -> None:
    await managed.pods(3)
    await managed.allocate("call-1")
    assert isinstance(await managed.allocator.release("call-1"), Released)
    await managed.journal.write()

    await managed.world.flush()
    await managed.pass_by(1)

    assert await managed.world.allocate("call-1") == "ended"


async def test_without_postgres_memory_is_rebuilt_from_heartbeats_alone(managed: Managed) -> None:
    await managed.pods(3)
    await managed.world.flush()
    await managed.database.close()

    await managed.manager.run_once()
    for number in range(3):
        await managed.world.beat(
            f"agent-{number}", ["call-1"] if number == 2 else [], rule=BeatRule(settle_ms=0)
        )

    assert await managed.world.allocate("call-1") == "agent-2"
    assert await managed.world.allocate("call-2") != "agent-2"


async def test_a_release_that_is_noted_before_its_allocation_wins(managed: Managed) -> None:
    managed.journal.over(Over("a-1", "call-1", "agent-0"))
    await managed.journal.write()
    managed.journal.begun(Begun("a-1", "call-1", "agent-0", "pool:standard", "", 1_700_000_000))
    await managed.journal.write()
    assert await managed.open_calls() == []


async def test_notes_wait_while_postgres_is_away_and_are_bounded(managed: Managed) -> None:
    await managed.pods(3)
    checkout = managed.database.checkout
    await managed.world.allocate("warm-up")
    managed.database.checkout = None  # type: ignore[assignment]  # as good as no Postgres
    await managed.allocator.allocate("call-1")
    with pytest.raises(AttributeError):
        await managed.journal.write()
    managed.database.checkout = checkout
    await managed.journal.write()
    assert "call-1" in await managed.open_calls()


async def test_a_paused_leader_that_goes_on_changes_nothing(managed: Managed) -> None:
    await managed.pods(3)
    old = router_manager.Term(managed.world.bus, managed.world.keys, *await _term(managed, 1))
    await managed.world.begin(term=2)
    before = await _dump(managed.world)

    for write in (
        old.remove("agent-0"),
        old.recover("gold", ["agent-0"]),
        old.publish_tiers(["standard"], {"standard": "e|9|1"}),
        old.balance(),
        old.merchants({"acme": "{}"}, "0"),
        old.bury({"call-9": 60}),
        old.settled(),
        old.restore("agent-9", "gold", [], lease_ttl_s=60, by_heartbeat=True),
        old.sync(router_manager.ClusterPod("agent-9", "u", True, False), durable_tier="", may_be_idle=True),
    ):
        with pytest.raises(TermLost):
            await write
    assert await _dump(managed.world) == before


async def test_a_leader_that_has_not_noticed_a_loss_is_refused_until_it_rebuilds(managed: Managed) -> None:
    term = router_manager.Term(managed.world.bus, managed.world.keys, *await _term(managed, 1))
    await managed.world.flush()
    with pytest.raises(TermLost):
        await term.publish_tiers(["standard"], {"standard": "e|9|1"})
    await managed.pass_by(1)
    assert await managed.world.client.hexists(managed.world.keys.tiers, "gold") == 1


async def test_another_life_of_the_server_is_a_loss(managed: Managed) -> None:
    await managed.pods(3)
    await managed.world.client.hset(managed.world.keys.epoch, "run_id", "another")
    assert await managed.world.allocate("call-1") == "none"
    await managed.world.beat("agent-2", rule=BeatRule(settle_ms=0))
    assert await managed.world.allocate("call-1") == "agent-2"


async def test_a_config_changed_by_hand_is_adopted_and_survives_a_loss(managed: Managed) -> None:
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


async def test_what_postgres_says_of_a_merchant_becomes_live(managed: Managed) -> None:
    async with managed.database.connection() as conn:
        await store.set_merchant(conn, "acme", '{"tier":"gold"}')
    await managed.pass_by(61)
    assert await managed.world.client.hget(managed.world.keys.merchant_config, "acme") == '{"tier":"gold"}'
    async with managed.database.connection() as conn:
        assert await store.remove_merchant(conn, "acme")
    await managed.pass_by(61)
    assert await managed.world.client.hexists(managed.world.keys.merchant_config, "acme") == 0


async def test_a_call_that_its_pod_never_names_is_asked_about_and_released(managed: Managed) -> None:
    await managed.pods(3)
    pod = await managed.allocate("call-1")
    client, keys = managed.world.client, managed.world.keys
    await client.hset(keys.call("call-1"), "allocated_at", "1")
    for _ in range(2):
        await managed.world.beat(pod)

    managed.over["call-1"] = False
    await managed.pass_by(31)
    assert await managed.world.allocate("call-1") == pod

    managed.over["call-1"] = True
    await managed.pass_by(31)
    assert await managed.world.allocate("call-1") == "ended"
    assert await managed.open_calls() == []


async def test_one_heartbeat_without_a_connecting_call_takes_nothing_away(managed: Managed) -> None:
    await managed.pods(3)
    pod = await managed.allocate("call-1")
    await managed.world.beat(pod)
    await managed.world.beat(pod)
    await managed.pass_by(31)
    assert await managed.world.allocate("call-1") == pod


async def test_a_force_reset_by_hand_frees_the_pod_and_closes_its_journal_row(managed: Managed) -> None:
    await managed.pods(3)
    pod = await managed.allocate("call-1")
    client, keys = managed.world.client, managed.world.keys
    await client.delete(keys.lease(pod))
    await client.delete(keys.call("call-1"))
    await client.hset(keys.pod(pod), "status", "available")
    await client.hdel(keys.pod(pod), "allocated_call_sid", "allocated_at")

    await managed.pass_by(31)

    assert pod in await managed.world.available("standard")
    assert await managed.open_calls() == []


async def test_a_force_reset_of_a_shared_pod_leaks_no_place(managed: Managed) -> None:
    await managed.pods(2)
    client, keys = managed.world.client, managed.world.keys
    assert await managed.allocate("call-1") == "agent-1"
    await managed.allocate("call-2")
    await client.delete(keys.call("call-1"))
    await client.hset(keys.pod("agent-1"), "status", "available")

    await managed.pass_by(31)

    assert await managed.world.available("basic") == {"agent-1": 1}
    assert await client.get(keys.lease("agent-1")) == "call-2"


async def test_a_full_reset_by_hand_is_rebuilt(managed: Managed) -> None:
    pods = await managed.pods(5)
    await managed.allocate("call-1")
    sizes = await managed.world.sizes()
    await managed.world.flush()
    await managed.pass_by(1)
    for pod in pods:
        named = ["call-1"] if await managed.world.allocate("call-1") == pod else []
        await managed.world.beat(pod, named, rule=BeatRule(settle_ms=0))
    assert await managed.world.sizes() == sizes
    counts = await router_views.counts(managed.world.bus, managed.world.keys)
    assert counts.calls == 1


async def test_a_drain_that_ran_out_or_was_deleted_ends(managed: Managed) -> None:
    await managed.pods(3)
    drained = await router_views.drain(managed.world.bus, managed.world.keys, "agent-2", 360)
    assert drained is not None
    assert await managed.world.available("standard") == {}

    await managed.world.client.delete(managed.world.keys.draining("agent-2"))
    await managed.pass_by(31)

    assert "agent-2" in await managed.world.available("standard")


async def test_a_hand_that_takes_a_pod_out_or_puts_one_in_is_put_right(managed: Managed) -> None:
    await managed.pods(4)
    client, keys = managed.world.client, managed.world.keys
    await client.srem(keys.available("standard"), "agent-2")
    await client.sadd(keys.available("standard"), "agent-2-ghost")
    await client.delete(keys.order("standard"))

    await managed.pass_by(31)

    assert "agent-2" in await managed.world.available("standard")
    assert set(await client.zrange(keys.order("standard"), 0, -1)) == {"agent-2", "agent-3"}
    assert {await managed.world.allocate(f"call-{n}") for n in range(9)} <= {
        "agent-1",
        "agent-2",
        "agent-3",
        "none",
    }


async def test_two_hundred_requests_for_a_hundred_calls_on_fifty_pods_leave_exact_refusals(
    managed: Managed,
) -> None:
    await managed.world.begin('{"standard": {"target": 1}}', term=2)
    await managed.world.pods(50)
    calls = [f"call-{number % 100}" for number in range(200)]
    answers = await asyncio.gather(*(managed.world.allocate(call) for call in calls))
    pods = {call: answer for call, answer in zip(calls, answers, strict=True) if answer != "none"}
    assert answers.count("none") == 100
    assert len(pods) == len(set(pods.values())) == 50
    assert all(answer in (pods.get(call), "none") for call, answer in zip(calls, answers, strict=True))


async def _term(managed: Managed, number: int) -> tuple[str, int]:
    lead = await router_manager.lead(managed.world.bus, managed.world.keys, number)
    return lead.epoch, number


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


async def test_a_merchant_that_is_edited_while_the_manager_reads_keeps_the_edit(
    managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Postgres was read before the edit, and Valkey would be written after it."""
    memory, gold, reads = managed.manager._memory, '{"tier": "gold"}', 0
    read = memory.merchants

    async def edited_meanwhile() -> dict[str, str]:
        nonlocal reads
        reads += 1
        truth = await read()
        if reads == 1:
            async with managed.database.connection() as conn:
                await store.set_merchant(conn, "acme", gold)
            await router_manager.set_merchant(managed.world.bus, managed.world.keys, "acme", gold)
        return truth

    monkeypatch.setattr(memory, "merchants", edited_meanwhile)
    await managed.pass_by(61)
    assert await managed.world.client.hgetall(managed.world.keys.merchant_config) == {"acme": gold}
    assert reads == 2


async def test_a_process_that_missed_a_move_gives_the_pod_its_tier_of_today_after_a_loss(
    managed: Managed,
) -> None:
    """It heard of the pod before another process moved it; then Valkey forgets all, and the pod speaks to it first."""
    secrets, config = StreamKeys.from_secrets(["a secret"]), RouterConfig(tiers=parse_tiers("{}"), settle_s=0)
    journal = JournalWriter(managed.database)
    pods = Pods(managed.world.bus, managed.world.keys, secrets, config, journal)
    said = Heartbeat("agent-0", "boot", 1, "10.0.0.1", 8080)
    first = await pods.heartbeat(said)
    await journal.write()
    moved = "basic" if first.tier != "basic" else "standard"
    async with managed.database.connection() as conn:
        await store.set_tiers(conn, {"agent-0": moved})
    await managed.world.flush()
    again = await pods.heartbeat(replace(said, sequence=2))
    assert again.tier == moved


async def test_without_postgres_a_process_gives_the_tier_that_it_remembers(managed: Managed) -> None:
    journal = JournalWriter(managed.database)
    journal.tier("agent-0", "gold")
    await journal.write()
    managed.database.checkout = NoConnection()  # type: ignore[assignment]  # stands for a Postgres that is away
    assert await journal.tier_of("agent-0", afresh=True) == "gold"
    assert await journal.tier_of("agent-1", afresh=True) == ""


class NoConnection:
    def lend(self) -> "NoConnection":
        raise OSError("no route to host")

    async def close(self) -> None: ...
