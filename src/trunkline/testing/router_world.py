"""The router's scripts under the keys of one test, with pods that count their own heartbeats."""

import json
from collections.abc import Sequence
from typing import Any

from trunkline.bus import router, router_manager, router_views
from trunkline.bus.connection import Bus
from trunkline.bus.router import Allocation, Beat, BeatRule, CallOver, Hold, Registration, Release, WaitRule
from trunkline.bus.router_keys import RouterKeys
from trunkline.bus.router_manager import Term
from trunkline.settings.tiers import assignment_order, parse_tiers

LEASE_TTL_S = 86_400
ENDED_TTL_S = 600


class RouterWorld:
    """Answers are short: the pod's name, or why there is none (`none`, `ended`, `hold 0`)."""

    def __init__(self, bus: Bus, keys: RouterKeys):
        self.bus = bus
        self.keys = keys
        self.client: Any = bus.client
        self.term = Term(bus, keys, "", 1)
        self._sequences: dict[str, int] = {}

    async def begin(self, tier_config: str = "{}", *, term: int = 1, is_settled: bool = True) -> None:
        """Take the term, as the manager of a new installation does."""
        lead = await router_manager.lead(self.bus, self.keys, term)
        self.term = Term(self.bus, self.keys, lead.epoch, term)
        if is_settled:
            await self.term.settled()
            await self.term.rebuilt()
        await self.publish(tier_config)

    async def publish(self, tier_config: str) -> bool:
        tiers = parse_tiers(tier_config)
        texts = {name: tier.text for name, tier in tiers.items()}
        return await self.term.publish_tiers(assignment_order(tiers), texts)

    async def beat(
        self,
        pod: str,
        calls: Sequence[str] = (),
        *,
        boot: str = "boot-1",
        sequence: int | None = None,
        leaving: bool = False,
        version: str = "",
        rule: BeatRule = BeatRule(),  # noqa: B008  frozen
    ) -> Registration:
        counted = self._sequences.get(pod, 1) + 1
        self._sequences[pod] = counted
        fields: dict[str, str | int] = {"ip": "10.0.0.1", "port": 8080, "version": version, "incarnation": 1}
        said = Beat(pod, boot, counted if sequence is None else sequence, calls, leaving, fields)
        known = await router.heartbeat(self.bus, self.keys, said, rule)
        assert isinstance(known, Registration), "the rule says which tier it has"
        return known

    async def pods(self, count: int, prefix: str = "agent") -> list[str]:
        names = [f"{prefix}-{number}" for number in range(count)]
        for name in names:
            await self.beat(name)
        return names

    async def allocate(self, call: str, merchant: str = "", wait: WaitRule = WaitRule()) -> str:  # noqa: B008
        answer = await self.ask(call, merchant, wait)
        match answer:
            case Allocation():
                return answer.pod
            case CallOver():
                return "ended"
            case Hold():
                return f"hold {answer.before}"
        return "none"

    async def ask(
        self,
        call: str,
        merchant: str = "",
        wait: WaitRule = WaitRule(),  # noqa: B008  frozen
        *,
        is_alone: bool = True,
    ) -> Any:
        return await router.allocate(
            self.bus,
            self.keys,
            call,
            merchant_id=merchant,
            allocation_id=f"allocation-of-{call}",
            lease_ttl_s=LEASE_TTL_S,
            wait=wait,
            is_alone=is_alone,
        )

    async def release(self, call: str, by_pod: str = "") -> Release | None:
        return await router.release(self.bus, self.keys, call, by_pod=by_pod, ended_ttl_s=ENDED_TTL_S)

    async def configure(self, merchant: str, **config: str) -> None:
        """As an operator does it by hand."""
        await self.client.hset(self.keys.merchant_config, merchant, json.dumps(config))

    async def available(self, tier: str) -> dict[str, int]:
        """The pods of a tier's `available`, with their loads if it is shared."""
        key = self.keys.available(tier)
        if await self.client.type(key) == "zset":
            return {pod: int(load) for pod, load in await self.client.zrange(key, 0, -1, withscores=True)}
        return dict.fromkeys(await self.client.smembers(key), 0)

    async def tier_of(self, pod: str) -> str | None:
        tier: str | None = await self.client.get(self.keys.pod_tier(pod))
        return tier

    async def status_of(self, pod: str) -> str | None:
        view = await router_views.pod_view(self.bus, self.keys, pod)
        return view.status if view else None

    async def recover(self) -> int:
        census = await router_manager.census(self.bus, self.keys, unnamed_s=60)
        return sum([(await self.term.recover(tier, pods))[0] for tier, pods in census.pods.items() if pods])

    async def fall_silent(self, pod: str) -> None:
        """As if it had not been heard for an hour in which we listened."""
        await self.client.zadd(self.keys.heartbeats, {pod: 1})
        seconds, _ = await self.client.time()
        await self.client.hset(self.keys.hearing, mapping={"since": 1, "ran": seconds * 1000})

    async def flush(self) -> None:
        """All of the router's memory is gone."""
        async for key in self.client.scan_iter(match=f"{self.keys.prefix}:*", count=1000):
            await self.client.delete(key)

    async def sizes(self) -> dict[str, int]:
        counts = await router_views.counts(self.bus, self.keys)
        return {pool.tier: pool.assigned for pool in counts.pools}
