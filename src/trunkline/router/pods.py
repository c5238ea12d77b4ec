"""Pods: what they say of themselves, and what is known of them."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from trunkline.bus import router as bus_router
from trunkline.bus import router_views
from trunkline.bus.router import Beat, BeatRule, Registration, Runner, TierWanted
from trunkline.bus.router_keys import RouterKeys
from trunkline.bus.router_views import CallView, Counts, Drained, PodView
from trunkline.crashpoint import crash_point
from trunkline.router.config import RouterConfig
from trunkline.router.journal import Journal, NoJournal
from trunkline.router.streams import StreamKeys
from trunkline.store import allocations
from trunkline.store.database import UNAVAILABLE, Database

# A heartbeat does not wait longer than this to be written.
WRITE_S = 0.5


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A pod's own word: where it is, which calls it holds, and whether it is leaving."""

    pod: str
    boot_id: str
    sequence: int
    ip: str
    port: int
    version: str = ""
    base_url: str = ""
    calls: Sequence[str] = ()
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Heard:
    """The router's answer. `calls` have this pod, connected or not. `again_in_s`: when to speak again, 0: as usual."""

    tier: str
    draining: bool
    calls: Sequence[str]
    max_concurrent: int
    again_in_s: float
    secrets: Sequence[bytes] = field(repr=False)


class Pods:
    def __init__(
        self,
        bus: Runner,
        keys: RouterKeys,
        stream_keys: StreamKeys,
        config: RouterConfig,
        journal: Journal | None = None,
        database: Database | None = None,
    ):
        self._bus = bus
        self._keys = keys
        self._stream_keys = stream_keys
        self._config = config
        self._journal = journal or NoJournal()
        self._database = database

    async def heartbeat(self, beat: Heartbeat) -> Heard:
        known_as = await self._write(beat)
        fields: dict[str, str | int] = {
            "ip": beat.ip,
            "port": beat.port,
            "version": beat.version,
            "base_url": beat.base_url,
        }
        said = Beat(
            pod=beat.pod,
            boot_id=beat.boot_id,
            sequence=beat.sequence,
            calls=beat.calls,
            leaving=beat.draining,
            fields={**fields, "incarnation": known_as[0]} if known_as else fields,
        )
        rule = BeatRule(
            durable_tier=None,
            may_register=self._config.by_heartbeat,
            lease_ttl_s=self._config.lease_ttl_s,
            ended_ttl_s=self._config.ended_ttl_s,
            settle_ms=round(self._config.settle_s * 1000),
            tiers=self._config.tiers_text,
        )
        known, is_new = await self._register(said, rule)
        crash_point("router.after_heartbeat")
        if known_as and known.tier and known_as[1:] != (known.tier, known.max_concurrent):
            await self._write_tier(beat.pod, known.tier, known.max_concurrent)
        if known.tier:
            self._journal.tier(beat.pod, known.tier, is_new=is_new)
        secrets = self._stream_keys.pod_secrets(beat.pod)
        return Heard(
            known.tier, known.draining, known.calls, known.max_concurrent, known.again_ms / 1000, secrets
        )

    async def _write(self, beat: Heartbeat) -> tuple[int, str, int] | None:
        """None: Postgres is away, and the pod is known to Valkey alone until it is back."""
        if self._database is None:
            return None
        try:
            async with asyncio.timeout(WRITE_S), self._database.transaction() as tx:
                return await allocations.heard(
                    tx,
                    beat.pod,
                    beat.boot_id,
                    beat.sequence,
                    base_url=beat.base_url,
                    ip=beat.ip,
                    port=beat.port,
                    version=beat.version,
                    calls=beat.calls,
                    is_leaving=beat.draining,
                )
        except UNAVAILABLE:
            return None

    async def _write_tier(self, pod: str, tier: str, calls_max: int) -> None:
        if self._database is None:
            return
        try:
            async with asyncio.timeout(WRITE_S), self._database.connection() as conn:
                await allocations.set_pod_tier(conn, pod, tier, calls_max)
        except UNAVAILABLE:
            return

    async def _register(self, said: Beat, rule: BeatRule) -> tuple[Registration, bool]:
        """What is known of the pod, and whether it was unknown before."""
        known = await bus_router.heartbeat(self._bus, self._keys, said, rule)
        is_new = False
        while isinstance(known, TierWanted):
            is_new = True
            # Afresh: another process may have moved the pod since this one last heard of it.
            rule = replace(rule, durable_tier=await self._journal.tier_of(said.pod, afresh=True))
            known = await bus_router.heartbeat(self._bus, self._keys, said, rule)
        return known, is_new

    async def drain(self, pod: str) -> Drained | None:
        """No new calls for `DRAINING_TTL`; the live ones go on."""
        drained = await router_views.drain(self._bus, self._keys, pod, self._config.draining_ttl_s)
        crash_point("router.after_drain")
        return drained

    async def undrain(self, pod: str) -> Drained | None:
        return await router_views.drain(self._bus, self._keys, pod, 0)

    async def counts(self) -> Counts:
        return await router_views.counts(self._bus, self._keys)

    async def find(self, pod: str) -> PodView | None:
        return await router_views.pod_view(self._bus, self._keys, pod)

    async def pods(self, first: int, count: int) -> list[PodView]:
        return await router_views.pods(self._bus, self._keys, first, count)

    async def calls(self, first: int, count: int) -> list[CallView]:
        return await router_views.calls(self._bus, self._keys, first, count)
