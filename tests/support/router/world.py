"""The router's scripts under the keys of one test, with pods that count their own heartbeats."""

import json
from collections.abc import Sequence
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

from tests.support.bus.router_keys import RouterKeys
from trunkline.bus import router, router_manager
from trunkline.bus.connection import Bus
from trunkline.bus.router import BeatRule, RouterBus, Unregistered, WaitRule
from trunkline.bus.router_manager import ProjectedPod, Term
from trunkline.model import Slot
from trunkline.router.config import RouterConfig
from trunkline.router.pods import Pods
from trunkline.router.registry import PodRegistry
from trunkline.routing import (
    Allocation,
    EndedAllocation,
    HeartbeatResult,
    Pod,
    PodHeartbeat,
    PodSuperseded,
    RegisteredPod,
    Unallocated,
)
from trunkline.settings.tiers import assignment_order, parse_tiers
from trunkline.store.database import Database
from trunkline.value import replace

LEASE_TTL_S = 86_400
ENDED_TTL_S = 600
# As the router's guide prints it.
SAMPLE = (
    '{"gold": {"type": "exclusive", "target": 1}, "standard": {"type": "exclusive", "target": 1},'
    ' "basic": {"type": "shared", "target": 1, "max_concurrent": 3}}'
)


class Numbers:
    """Stands for Postgres: gives each process of a pod its number."""

    def __init__(self) -> None:
        self._last = 0
        self._known: dict[str, list[tuple[str, int]]] = {}

    def of(self, pod: str, boot: str) -> RegisteredPod:
        boots = self._known.setdefault(pod, [])
        is_new = not boots
        if not any(known == boot for known, _ in boots):
            self._last += 1
            boots.append((boot, self._last))
        number = next(number for known, number in boots if known == boot)
        past = [known for known, before in boots if before < number]
        return RegisteredPod(number, is_new=is_new, past_boots=past)


class RouterWorld:
    """Answers are short: the pod's name, or why there is none (`none`, `ended`, `hold 0`)."""

    def __init__(self, bus: Bus, keys: RouterKeys):
        self.bus = bus
        self.keys = keys
        self.router_bus = RouterBus(bus, keys)
        self.client: Any = bus.client
        self.term = Term(self.router_bus, "", 1)
        self._sequences: dict[str, int] = {}
        self._numbers = Numbers()

    async def begin(self, tier_config: str = SAMPLE, *, term: int = 1, is_rebuilt: bool = True) -> None:
        """Take the term, as the manager of a new installation does."""
        lead = await router_manager.lead(self.router_bus, term)
        self.term = Term(self.router_bus, lead.epoch, term)
        if is_rebuilt:
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
        is_alone: bool = False,
        tier: str = "",
        hanging: Sequence[str] = (),
    ) -> Any:
        """`is_alone`: Postgres is silent. `tier`: what it knows of the pod's, '' for a new one."""
        said = self._beat(pod, calls, boot, sequence, leaving, version, hanging)
        known = await router.heartbeat(self.router_bus, said, rule)
        if isinstance(known, Unregistered):
            known_pod = replace(self._numbers.of(pod, boot), tier=tier, newest_version=version)
            told = RegisteredPod() if is_alone else known_pod
            known = await router.heartbeat(self.router_bus, said, rule, told)
        assert isinstance(known, HeartbeatResult | PodSuperseded)
        return known

    def _beat(
        self,
        pod: str,
        calls: Sequence[str],
        boot: str,
        sequence: int | None,
        leaving: bool,
        version: str,
        hanging: Sequence[str] = (),
    ) -> PodHeartbeat:
        counted = self._sequences.get(pod, 1) + 1
        self._sequences[pod] = counted
        number = counted if sequence is None else sequence
        return PodHeartbeat(
            pod, boot, number, "10.0.0.1", 8080, version, "", tuple(calls), leaving, 5,
            hanging=tuple(hanging),
        )  # fmt: skip

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
            case Unallocated(why="ended"):
                return "ended"
            case Unallocated(why="hold", before=before):
                return f"hold {before}"
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
            self.router_bus,
            call,
            merchant_id=merchant,
            allocation_id=self.allocation_of(call),
            lease_ttl_s=LEASE_TTL_S,
            wait=wait,
            is_alone=is_alone,
        )

    @staticmethod
    def allocation_of(call: str) -> UUID:
        return uuid5(NAMESPACE_OID, call)

    async def release(self, call: str, by_pod: str = "") -> EndedAllocation | None:
        return await router.release(self.router_bus, call, by_pod=by_pod, ended_ttl_s=ENDED_TTL_S)

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
        view = await router.pod_view(self.router_bus, pod)
        return view.pod.status if view else None

    async def recover(self) -> int:
        """Pods are put where they belong, as if Postgres had the slots that Valkey has. How many were elsewhere."""
        census = await router_manager.census(self.router_bus)
        pods = [await self._true(pod, tier) for tier, pods in census.items() for pod in pods]
        return (await self.term.put(pods, lease_ttl_s=LEASE_TTL_S)).fixed

    async def move(self, pod: str, tier: str) -> None:
        """As when Postgres has it in another tier."""
        true = await self._true(pod, tier)
        await self.term.put([replace(true, pod=replace(true.pod, tier=tier))], lease_ttl_s=LEASE_TTL_S)

    async def _true(self, pod: str, tier: str) -> ProjectedPod:
        hash_of, keys = self.client.hgetall, self.keys
        known = await hash_of(keys.pod(pod))
        rows: list[Allocation] = []
        for no, one in (await hash_of(keys.pod_slots(pod))).items():
            sid = await self.client.get(keys.begun(one)) or ""
            record = await hash_of(keys.call(sid) if sid else keys.kept_for(one))
            source = record.get("source_pool", f"pool:{tier}")
            number = int(record.get("incarnation", known.get("incarnation", "1")))
            at_s = int(record.get("allocated_at", "1"))
            slot = Slot(pod, int(no), number, source)
            rows.append(Allocation(UUID(one), sid, slot, record.get("merchant_id", ""), at_s=at_s))
        true = Pod(
            pod, int(known.get("incarnation", "1")), await self.tier_of(pod) or tier,
            boot_id=known.get("boot_id", ""), sequence=int(known.get("sequence", "0")),
            is_ready=known.get("ready", "1") == "1", is_leaving=known.get("leaving", "0") == "1",
            drain_left_s=max(0, await self.client.ttl(keys.draining(pod))),
        )  # fmt: skip
        return ProjectedPod(true, rows, is_certain=False)

    async def fall_silent(self, pod: str) -> None:
        """As if it had not been heard for an hour in which we listened."""
        await self.client.zadd(self.keys.heartbeats, {pod: 1})
        await self.client.hset(self.keys.pod(pod), "heard_ms", 1)
        seconds, _ = await self.client.time()
        await self.client.hset(self.keys.hearing, mapping={"since": 1, "ran": seconds * 1000})

    async def flush(self) -> None:
        """All of the router's memory is gone."""
        async for key in self.client.scan_iter(match=f"{self.keys.prefix}:*", count=1000):
            await self.client.delete(key)

    async def sizes(self) -> dict[str, int]:
        counts = await router.counts(self.router_bus)
        return {pool.tier: pool.assigned for pool in counts.pools}


class StoredWorld(RouterWorld):
    """With Postgres: pods register by the router's own face, and calls have rows."""

    def __init__(self, bus: Bus, keys: RouterKeys, database: Database, config: RouterConfig):
        super().__init__(bus, keys)
        self.database = database
        self.registry = PodRegistry(database, self.router_bus, config)
        self.face = Pods(self.router_bus, config, database, self.registry)

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
        is_alone: bool = False,
        tier: str = "",
        hanging: Sequence[str] = (),
    ) -> HeartbeatResult | PodSuperseded:
        heard = await self.face.heartbeat(self._beat(pod, calls, boot, sequence, leaving, version, hanging))
        await self.written()
        return heard

    async def written(self) -> None:
        """Postgres knows what was heard, as it does after a second."""
        self.registry.mark_receiving()
        await self.registry.write()

    async def ask(
        self,
        call: str,
        merchant: str = "",
        wait: WaitRule = WaitRule(),  # noqa: B008  frozen
        *,
        is_alone: bool = True,
    ) -> Any:
        answer = await super().ask(call, merchant, wait, is_alone=is_alone)
        if isinstance(answer, Allocation) and not answer.is_existing:
            await self.note(call, answer, merchant)
        return answer

    async def note(self, call: str, given: Allocation, merchant: str = "") -> None:
        """The row that Postgres has of a call with a pod."""
        slot = given.slot
        async with self.database.connection() as conn:
            await conn.execute(
                "INSERT INTO allocations AS a (id, has_attempt, call, merchant_id, pod, slot, incarnation, source_pool,"
                " begun_at) VALUES ($1, false, $2, $3, $4, $5, $6, $7, clock_timestamp()) ON CONFLICT (id) DO UPDATE"
                " SET pod = excluded.pod, slot = excluded.slot, incarnation = excluded.incarnation",
                self.allocation_of(call), call, merchant, slot.pod, slot.no, slot.incarnation, slot.source_pool,
            )  # fmt: skip

    async def keep(self, dial: str, pod: str, slot: int = 1) -> UUID:
        """The row of a dial that keeps a slot."""
        async with self.database.connection() as conn:
            await conn.execute(
                "INSERT INTO allocations (id, has_attempt, pod, slot, incarnation, source_pool)"
                " SELECT $1, true, p.name, $3, p.incarnation, 'pool:' || p.tier FROM pods AS p WHERE p.name = $2",
                self.allocation_of(dial), pod, slot,
            )  # fmt: skip
        return self.allocation_of(dial)

    async def release(self, call: str, by_pod: str = "") -> EndedAllocation | None:
        await self.end(call)
        return await super().release(call, by_pod)

    async def end(self, call: str) -> None:
        async with self.database.connection() as conn:
            await conn.execute(
                "UPDATE allocations SET ended_at = clock_timestamp(), why = 'released' WHERE call = $1", call
            )

    async def live(self) -> dict[str, str | None]:
        """Calls with live rows and their pods."""
        async with self.database.connection() as conn:
            rows = await conn.fetch(
                "SELECT call, pod FROM allocations WHERE ended_at IS NULL AND call IS NOT NULL"
            )
        return {row["call"]: row["pod"] for row in rows}

    async def tiers(self) -> dict[str, str]:
        async with self.database.connection() as conn:
            return {row["name"]: row["tier"] for row in await conn.fetch("SELECT name, tier FROM pods")}

    async def fall_silent(self, pod: str) -> None:
        await super().fall_silent(pod)
        async with self.database.connection() as conn:
            await conn.execute("UPDATE pods SET heard_at = heard_at - interval '1 hour' WHERE name = $1", pod)
            await conn.execute("UPDATE pod_hearing SET since = since - interval '1 hour'")
