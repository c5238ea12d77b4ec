"""The seven bugs and five caveats of the source, each by its name. The caveats show our departure."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.bus.router_keys import RouterKeys
from tests.support.router.world import RouterWorld
from trunkline.bus import router, router_manager
from trunkline.bus.connection import connect
from trunkline.bus.keys import Keys
from trunkline.bus.router import BeatRule
from trunkline.client import RouterSettings, SmartRouterClient
from trunkline.errors import BusUnavailable

SOURCE = Path(__file__).parents[2] / "src" / "trunkline"
SHARED = '{"basic": {"type": "shared", "target": 9, "max_concurrent": 2}}'


@pytest.fixture
async def world(redis_url: str, key_prefix: str) -> AsyncIterator[RouterWorld]:
    bus = connect(redis_url, Keys(prefix=key_prefix))
    world = RouterWorld(bus, RouterKeys(key_prefix))
    await world.begin()
    yield world
    await bus.close()


async def test_bug_1_the_pool_manager_runs(world: RouterWorld) -> None:
    await world.pods(3)
    assert await world.recover() == 0


async def test_bug_2_a_pod_that_cannot_be_judged_is_not_added(world: RouterWorld) -> None:
    await world.pods(3)
    await world.allocate("call-1")
    await world.client.delete(world.keys.pod_calls("agent-2"))
    await world.client.set(world.keys.pod_calls("agent-2"), "not a set")
    with pytest.raises(BusUnavailable):
        await world.recover()
    assert "agent-2" not in await world.available("standard")


async def test_bug_3_concurrent_requests_for_one_call_get_one_pod_and_none_waits_for_a_lock(
    world: RouterWorld,
) -> None:
    await world.pods(5)
    pods = await asyncio.gather(*(world.allocate("call-1") for _ in range(50)))
    assert len(set(pods)) == 1
    assert len(await world.available("standard")) == 2
    assert await world.client.hexists(world.keys.call("call-1"), "_lock") == 0


async def test_bug_4_a_draining_pod_at_the_head_of_a_shared_pool_hides_no_other(world: RouterWorld) -> None:
    await world.begin(SHARED, term=2)
    pods = await world.pods(40)
    for pod in sorted(pods)[:39]:
        await world.client.set(world.keys.draining(pod), "true")
    assert await world.allocate("call-1") == sorted(pods)[39]


async def test_bug_5_a_shared_pod_that_fell_out_comes_back_with_the_calls_it_has(
    world: RouterWorld,
) -> None:
    await world.begin(SHARED, term=2)
    await world.pods(1)
    await world.allocate("call-1")
    await world.client.zrem(world.keys.available("basic"), "agent-0")
    assert await world.recover() == 1
    assert await world.available("basic") == {"agent-0": 1}


@pytest.mark.parametrize(
    "config", ["{}", SHARED, '{"merchant:acme": {"target": 9}}', '{"silver": {"target": 9}}']
)
async def test_bug_6_a_pod_is_removed_from_every_type_of_pool(world: RouterWorld, config: str) -> None:
    await world.begin(config, term=2)
    await world.pods(3)
    for pod in ("agent-0", "agent-1", "agent-2"):
        await world.allocate(f"call-of-{pod}", "acme")
    for pod in ("agent-0", "agent-1", "agent-2"):
        assert await world.term.remove(pod)
    left = [key async for key in world.client.scan_iter(match=f"{world.keys.prefix}:*agent-*")]
    assert left == []
    counts = await router.counts(world.router_bus)
    assert (counts.calls, {(p.available, p.assigned) for p in counts.pools}) == (0, {(0, 0)})


def test_bug_7_nothing_is_printed_everything_is_logged_with_its_fields() -> None:
    for path in [*(SOURCE / "router").rglob("*.py"), *(SOURCE / "bus").glob("router*.py")]:
        assert not re.search(r"^\s*print\(", path.read_text(encoding="utf-8"), re.MULTILINE), path


async def test_caveat_1_without_a_leader_allocation_and_registration_go_on(world: RouterWorld) -> None:
    await world.pods(3)
    await world.client.hdel(world.keys.epoch, "term")
    await world.beat("agent-3", rule=BeatRule(settle_ms=0))
    assert {await world.allocate(f"call-{n}") for n in range(2)} == {"agent-2", "agent-3"}
    assert await world.release("call-0") is not None


async def test_caveat_2_tiers_stay_the_same_after_the_projection_is_lost(world: RouterWorld) -> None:
    pods = await world.pods(5)
    tiers = {pod: await world.tier_of(pod) for pod in pods}
    await world.flush()
    for pod in reversed(pods):
        await world.beat(pod, tier=tiers[pod] or "", rule=BeatRule(tiers=_TIERS, settle_ms=0))
    assert {pod: await world.tier_of(pod) for pod in pods} == tiers


def test_caveat_3_the_circuit_breaker_is_one_for_the_process() -> None:
    settings = RouterSettings(base_url="http://one-router:8080", fallback_url="wss://voice.example.com/any")
    assert SmartRouterClient(settings).breaker is SmartRouterClient(settings).breaker


async def test_caveat_4_gold_is_reserved(world: RouterWorld) -> None:
    await world.pods(5)
    reached = {await world.allocate(f"call-{n}", "somebody") for n in range(9)}
    assert "agent-0" not in reached
    assert await world.available("gold") == {"agent-0": 0}


async def test_caveat_5_a_draining_pod_is_skipped_and_not_consumed(world: RouterWorld) -> None:
    await world.pods(3)
    await world.client.set(world.keys.draining("agent-2"), "true", ex=360)
    assert await world.allocate("call-1") == "agent-1"
    assert "agent-2" in await world.available("standard")
    await world.client.delete(world.keys.draining("agent-2"))
    assert await world.allocate("call-2") == "agent-2"


async def test_an_operators_drain_ends_by_itself_and_a_leaving_pods_does_not(world: RouterWorld) -> None:
    await world.pods(3)
    await router.drain(world.router_bus, "agent-2", 360)
    assert 300 < await world.client.ttl(world.keys.draining("agent-2")) <= 360
    await world.beat("agent-2", leaving=True)
    undrained = await router.drain(world.router_bus, "agent-2", 0)
    assert undrained is not None
    assert undrained.is_draining
    assert await world.allocate("call-9") == "agent-1"


async def test_every_reading_command_of_the_operations_sheet_answers(world: RouterWorld) -> None:
    await world.pods(5)
    await world.configure("acme-corp", tier="gold")
    await world.allocate("call-abc123", "acme-corp")
    client, prefix = world.client, world.keys.prefix
    assert await client.scard(f"{prefix}:pool:gold:available") == 0
    assert await client.scard(f"{prefix}:pool:standard:available") == 3
    assert await client.zcard(f"{prefix}:pool:basic:available") == 1
    assert await client.smembers(f"{prefix}:pool:gold:assigned") == {"agent-0"}
    assert await client.zrange(f"{prefix}:pool:basic:available", 0, -1, withscores=True) == [("agent-1", 0.0)]
    assert await client.get(f"{prefix}:pod:tier:agent-0") == "gold"
    assert await client.get(f"{prefix}:lease:agent-0") == "call-abc123"
    call = await client.hgetall(f"{prefix}:call:call-abc123")
    assert (call["pod_name"], call["source_pool"], call["merchant_id"]) == (
        "agent-0",
        "pool:gold",
        "acme-corp",
    )
    assert (await client.hgetall(f"{prefix}:pod:agent-0"))["status"] == "allocated"
    assert len(await client.hgetall(f"{prefix}:pod:metadata")) == 5
    assert await client.hgetall(f"{prefix}:merchant:config") == {"acme-corp": '{"tier": "gold"}'}


def test_every_key_is_documented() -> None:
    page = (SOURCE.parents[1] / "docs" / "explanation" / "router.md").read_text(encoding="utf-8")
    keys = RouterKeys()
    made = [
        keys.available("{tier}"), keys.assigned("{tier}"), keys.order("{tier}"), keys.waiting_for("{tier}"),
        keys.available("merchant:{id}"), keys.assigned("merchant:{id}"), keys.pod("{pod}"), keys.pod_tier("{pod}"),
        keys.pod_calls("{pod}"), keys.draining("{pod}"), keys.lease("{pod}"), keys.call("{call_sid}"),
        keys.ended("{call_sid}"), keys.metadata, keys.calls, keys.waiting, keys.waiters, keys.tiers,
        keys.merchant_config, keys.merchant_written, keys.version, keys.heartbeats, keys.hearing, keys.epoch,
        keys.pod_slots("{pod}"), keys.kept, keys.kept_for("{id}"), keys.begun("{id}"), keys.unproven, keys.resets,
        keys.waiting_merchants("{tier}"), keys.yielded("{tier}"), keys.kept_in("{tier}"), keys.silent("{tier}"),
        keys.leaving("{tier}"), keys.dials_waiting, keys.superseded("{pod}"),
    ]  # fmt: skip
    methods = [
        name for name in dir(RouterKeys) if not name.startswith("_") and name not in ("base", "prefix")
    ]
    assert len(made) == len(methods) + 2, "a key that this test does not know"
    assert [key for key in made if f"| `{key}` |" not in page] == []


async def test_no_other_keys_than_the_documented_ones_are_written(world: RouterWorld) -> None:
    await world.pods(5)
    await world.allocate("call-1")
    await world.release("call-1")
    page = (SOURCE.parents[1] / "docs" / "explanation" / "router.md").read_text(encoding="utf-8")
    shapes = [
        re.escape(key).replace(r"\{", "{")
        for key in re.findall(r"^\| `voice:([^`]+)` \|", page, re.MULTILINE)
    ]
    pattern = re.compile("|".join(re.sub(r"\{[^}]*\}|\\{[^}]*\\}", ".+", shape) for shape in shapes))
    async for key in world.client.scan_iter(match=f"{world.keys.prefix}:*"):
        assert pattern.fullmatch(key.removeprefix(f"{world.keys.prefix}:")), key


async def test_a_crash_between_any_two_steps_leaks_nothing_after_one_reconcile(world: RouterWorld) -> None:
    """Each step is one script: whatever was answered or not, the next pass finds every pod where it belongs."""
    pods = await world.pods(5)
    for done in range(4):
        call = f"call-{done}"
        steps = [
            world.allocate(call),
            world.beat("agent-2", [call]),
            world.release(call),
            world.beat("agent-2"),
        ]
        for number, step in enumerate(steps):
            if number <= done:
                await step
            else:
                step.close()
        await world.release(call)
        await world.beat("agent-2")
        await world.recover()
        counts = await router.counts(world.router_bus)
        assert counts.calls == 0
        assert sum(pool.available for pool in counts.pools) == len(pods)


async def test_terms_only_grow(world: RouterWorld) -> None:
    assert (await router_manager.lead(world.router_bus, 5)).is_taken
    assert not (await router_manager.lead(world.router_bus, 4)).is_taken
    assert (await router_manager.lead(world.router_bus, 5)).is_taken


_TIERS = "#order=gold,basic,standard gold=e|1|1 standard=e|1|1 basic=s|1|3"
