"""Every command of the operations sheet that reads or writes keys, as it is typed, on the keys of a running router."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.router.managed import Managed, open_managed
from trunkline.bus import router as bus_router
from trunkline.bus.router import BeatRule

HEARD = BeatRule(settle_ms=0)


class Sheet:
    """`redis-cli`, with the prefix of one test in the place of `voice`."""

    def __init__(self, managed: Managed):
        self.managed = managed
        self._prefix = managed.world.keys.prefix

    async def type(self, line: str, *last: str) -> Any:
        words = [word.replace("voice:", f"{self._prefix}:") for word in line.split()]
        return await self.managed.world.client.execute_command(*words, *last)

    async def keys(self, pattern: str) -> set[str]:
        found = await self.type(f"KEYS {pattern}")
        return {key.replace(f"{self._prefix}:", "voice:", 1) for key in found}


@pytest.fixture
async def sheet(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Sheet]:
    async with open_managed(database_url, redis_url, key_prefix) as managed:
        await managed.pods(5)
        yield Sheet(managed)


async def test_the_reading_commands_show_pools_pods_and_calls(sheet: Sheet) -> None:
    managed = sheet.managed
    await sheet.type("HSET voice:merchant:config acme-corp", '{"tier":"gold"}')
    assert await managed.allocate("call-abc123", "acme-corp") == "agent-0"
    await bus_router.drain(managed.world.router_bus, "agent-3", 360)

    assert {"voice:pool:gold:assigned", "voice:pod:metadata"} <= await sheet.keys("voice:*")
    assert await sheet.type("SCARD voice:pool:gold:available") == 0
    assert await sheet.type("SCARD voice:pool:standard:available") == 2
    assert await sheet.type("ZCARD voice:pool:basic:available") == 1
    assert set(await sheet.type("SMEMBERS voice:pool:gold:available")) == set()
    assert set(await sheet.type("SMEMBERS voice:pool:standard:available")) == {"agent-2", "agent-4"}
    assert await sheet.type("ZRANGE voice:pool:basic:available 0 -1 WITHSCORES")
    assert set(await sheet.type("SMEMBERS voice:pool:gold:assigned")) == {"agent-0"}
    assert set(await sheet.type("SMEMBERS voice:pool:standard:assigned")) == {"agent-2", "agent-3", "agent-4"}
    assert await sheet.type("GET voice:pod:tier:agent-0") == "gold"
    assert await sheet.keys("voice:call:*") == {"voice:call:call-abc123"}
    assert await sheet.keys("voice:lease:*") == {"voice:lease:agent-0"}
    call = await sheet.type("HGETALL voice:call:call-abc123")
    assert (call["pod_name"], call["source_pool"], call["merchant_id"]) == (
        "agent-0",
        "pool:gold",
        "acme-corp",
    )
    assert call["allocated_at"].isdigit()
    pod = await sheet.type("HGETALL voice:pod:agent-0")
    assert (pod["status"], pod["allocated_call_sid"], pod["source_pool"]) == (
        "allocated", "call-abc123", "pool:gold",
    )  # fmt: skip
    assert await sheet.keys("voice:pod:draining:*") == {"voice:pod:draining:agent-3"}
    assert await sheet.type("HGETALL voice:merchant:config") == {"acme-corp": '{"tier":"gold"}'}
    assert set(await sheet.type("HGETALL voice:pod:metadata")) == {f"agent-{n}" for n in range(5)}
    for key in ("voice:call:call-abc123", "voice:lease:agent-0"):
        assert 86_000 < await sheet.type(f"TTL {key}") <= 86_400
    assert 300 < await sheet.type("TTL voice:pod:draining:agent-3") <= 360


async def test_merchants_are_given_tiers_and_lose_them_by_hset_and_hdel(sheet: Sheet) -> None:
    managed = sheet.managed
    await sheet.type("HSET voice:merchant:config acme-corp", '{"tier":"gold"}')
    await sheet.type("HSET voice:merchant:config 9shines", '{"tier":"dedicated","pool":"9shines"}')
    assert await managed.allocate("call-1", "acme-corp") == "agent-0"
    assert await managed.allocate("call-2", "9shines") in {"agent-2", "agent-3", "agent-4"}, (
        "its pool has none"
    )
    await sheet.type("HDEL voice:merchant:config acme-corp")
    await managed.world.release("call-1")
    assert await managed.allocate("call-3", "acme-corp") != "agent-0"


async def test_a_drain_is_ended_by_deleting_its_key(sheet: Sheet) -> None:
    managed = sheet.managed
    await bus_router.drain(managed.world.router_bus, "agent-2", 360)
    assert "agent-2" not in await sheet.type("SMEMBERS voice:pool:standard:available")
    await sheet.type("DEL voice:pod:draining:agent-2")
    await managed.pass_by(31)
    assert "agent-2" in await sheet.type("SMEMBERS voice:pool:standard:available")


async def test_a_stuck_pod_is_force_reset(sheet: Sheet) -> None:
    managed = sheet.managed
    pod = await managed.allocate("stuck")
    await sheet.type(f"DEL voice:lease:{pod}")
    await sheet.type("DEL voice:call:stuck")
    await sheet.type(f"HSET voice:pod:{pod} status available")
    await sheet.type(f"HDEL voice:pod:{pod} allocated_call_sid allocated_at")

    await managed.pass_by(31)

    assert pod in await sheet.type("SMEMBERS voice:pool:standard:available")
    assert await managed.open_calls() == []
    assert await sheet.type("ZCARD voice:calls") == 0


@pytest.mark.parametrize("first", ["voice:pod", "voice:pool", ""])
async def test_everything_deleted_key_by_key_is_rebuilt(sheet: Sheet, first: str) -> None:
    """As `KEYS voice:* | xargs -n1 DEL` does it: the manager may look in the middle of it."""
    managed = sheet.managed
    for merchant in ("acme", "other"):
        await sheet.type(f"HSET voice:merchant:config {merchant}", '{"tier":"gold"}')
    busy = await managed.allocate("call-1")
    tiers = {f"agent-{n}": await managed.world.tier_of(f"agent-{n}") for n in range(5)}
    await managed.pass_by(61)

    # The worst order: pods or pools first, and last of all by what a loss is known.
    keys = sorted(
        await sheet.keys("voice:*"), key=lambda key: (key.endswith(":epoch"), not key.startswith(first), key)
    )
    last_of_first = max(place for place, key in enumerate(keys) if key.startswith(first))
    for place, key in enumerate(keys):
        await sheet.type(f"DEL {key}")
        if first and place == last_of_first:
            await managed.pass_by(61)
    await sheet.managed.world.flush()
    await managed.pass_by(1)

    assert {pod: await managed.world.tier_of(pod) for pod in tiers} == tiers
    assert await managed.world.allocate("call-1") == busy, "a busy pod comes back busy"
    assert set(await sheet.type("HGETALL voice:merchant:config")) == {"acme", "other"}
    for pod in tiers:
        await managed.world.beat(pod, ["call-1"] if pod == busy else [], rule=HEARD)
    free = {await managed.world.allocate(f"more-{n}") for n in range(9)}
    assert free - {"none"} == {"agent-1", "agent-2", "agent-3", "agent-4"} - {busy}
