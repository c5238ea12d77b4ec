"""Pods: takes in their heartbeats, and reads, drains and resets them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from trunkline.bus import router as bus_router
from trunkline.bus import router_views
from trunkline.bus.keys import RouterKeys
from trunkline.bus.router import Beat, BeatRule, KnownPod, PodSuperseded, Registration, Runner, Unregistered
from trunkline.bus.router_views import Drained, PodView, RouterCall, RouterCounts
from trunkline.crashpoint import crash_point
from trunkline.errors import BusUnavailable
from trunkline.router.config import RouterConfig
from trunkline.router.registry import REGISTER_S, PodRegistry
from trunkline.router.streams import StreamKeys
from trunkline.store import pods as store
from trunkline.store.database import UNAVAILABLE, Database
from trunkline.store.pods import PodBeat, Registered, Superseded
from trunkline.telemetry import get_logger

log = get_logger(__name__)

# This many heartbeats of replaced processes within two minutes are not late ones: two clusters use the same names.
SUPERSEDED_ALARM = 3

# Raises the alarm that two clusters use one pod's name.
TwoClusters = Callable[[str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class PodHeartbeat:
    """A pod's report on itself: its address, its calls, and whether it is leaving."""

    pod: str
    boot_id: str
    sequence: int
    ip: str
    port: int
    version: str = ""
    base_url: str = ""
    calls: Sequence[str] = ()
    draining: bool = False
    interval_s: float = 30.0
    ended: Sequence[str] = ()
    hanging: Sequence[str] = ()
    handing_over: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class HeartbeatResult:
    """The router's reply. `calls` have this pod, connected or not. `again_in_s`: when to send the next heartbeat; 0: at
    the pod's interval."""

    tier: str
    draining: bool
    calls: Sequence[str]
    max_concurrent: int
    again_in_s: float
    secrets: Sequence[bytes] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Reset:
    """A pod that an operator freed: the calls whose allocations ended, those that it still names, and those whose
    handlers hang, which only the pod itself can end."""

    calls: Sequence[str]
    still_named: Sequence[str]
    hanging: Sequence[str]
    status: str


async def _no_alarm(_pod: str) -> None: ...


class Pods:
    def __init__(
        self,
        bus: Runner,
        keys: RouterKeys,
        stream_keys: StreamKeys,
        config: RouterConfig,
        database: Database,
        registry: PodRegistry | None = None,
        *,
        two_clusters: TwoClusters = _no_alarm,
    ):
        self._bus = bus
        self._keys = keys
        self._stream_keys = stream_keys
        self._config = config
        self._database = database
        self._registry = registry or PodRegistry(database, bus, keys, config)
        self._two_clusters = two_clusters

    async def heartbeat(self, beat: PodHeartbeat) -> HeartbeatResult | PodSuperseded:
        """Written to Valkey at once and to Postgres within a second; while one of them is away, to the other."""
        record = PodBeat(
            beat.pod,
            beat.boot_id,
            beat.sequence,
            beat.draining,
            tuple(beat.calls),
            beat.ip,
            beat.port,
            beat.version,
            beat.base_url,
            beat.interval_s,
            tuple(beat.ended),
            tuple(beat.hanging),
            tuple(beat.handing_over),
        )
        await self._registry.write_ahead(record)
        try:
            known = await self._to_valkey(record)
        except BusUnavailable:
            known = await self._to_postgres(record)
        crash_point("router.after_heartbeat")
        if isinstance(known, PodSuperseded):
            await self._report(record, known)
            return known
        if known.is_news and known.incarnation:
            self._registry.enqueue(record, known.incarnation)
        secrets = self._stream_keys.pod_secrets(beat.pod)
        return HeartbeatResult(
            known.tier, known.draining, known.calls, known.max_concurrent, known.again_ms / 1000, secrets
        )

    def released(self, pod: str, call_sid: str) -> None:
        """The pod released a call, and both engines have the release."""
        self._registry.released(pod, call_sid)

    async def _to_valkey(self, record: PodBeat) -> Registration | PodSuperseded:
        beat, rule = self._beat(record), self._rule()
        answer = await bus_router.heartbeat(self._bus, self._keys, beat, rule)
        if isinstance(answer, Unregistered):
            try:
                row = await self._registry.register(record, answer.tiers)
            except UNAVAILABLE as error:
                log.warning("router.pod_unregistered", pod=record.pod, reason=str(error))
                known = KnownPod()
            else:
                if isinstance(row, Superseded):
                    # Valkey may not have the earlier processes.
                    return await self._superseded(record)
                known = _known(row)
            answer = await bus_router.heartbeat(self._bus, self._keys, beat, rule, known)
        assert not isinstance(answer, Unregistered), "the second request carries the registration"
        return answer

    async def _superseded(self, record: PodBeat) -> PodSuperseded:
        return PodSuperseded(await bus_router.count_superseded(self._bus, self._keys, record.pod))

    async def _to_postgres(self, record: PodBeat) -> Registration | PodSuperseded:
        """Valkey is away: register the pod in Postgres, so that calls still get it."""
        try:
            row = await self._registry.register(record, {})
            if isinstance(row, Superseded):
                return PodSuperseded()
            async with self._database.connection() as conn:
                calls = await store.calls_of(conn, record.pod)
        except UNAVAILABLE as error:
            raise BusUnavailable(f"neither Valkey nor Postgres answers: {error}") from error
        if row is None:
            return Registration(False, "", False, (), 2000, 1, 0)
        return Registration(True, row.tier, record.leaving, tuple(calls), 0, row.calls_max, row.incarnation)

    async def _report(self, record: PodBeat, superseded: PodSuperseded) -> None:
        log.warning("router.pod_superseded", pod=record.pod, boot_id=record.boot_id, times=superseded.times)
        if superseded.times >= SUPERSEDED_ALARM:
            await self._two_clusters(record.pod)

    def _beat(self, record: PodBeat) -> Beat:
        fields: dict[str, str | int] = {
            "ip": record.ip,
            "port": record.port,
            "version": record.version,
            "base_url": record.base_url,
            "interval_s": f"{record.interval_s:g}",
            "hanging": " ".join(record.hanging),
            "handing_over": " ".join(record.handing_over),
        }
        return Beat(record.pod, record.boot_id, record.sequence, record.calls, record.leaving, fields)

    def _rule(self) -> BeatRule:
        return BeatRule(
            may_register=self._config.by_heartbeat,
            lease_ttl_s=self._config.lease_ttl_s,
            settle_ms=round(self._config.settle_s * 1000),
            tiers=self._config.tiers_text,
        )

    async def drain(self, pod: str) -> Drained | None:
        """No new calls for `DRAINING_TTL`; live calls go on."""
        drained = await router_views.drain(self._bus, self._keys, pod, self._config.draining_ttl_s)
        crash_point("router.after_drain")
        await self._note_drain(pod, self._config.draining_ttl_s)
        return drained

    async def undrain(self, pod: str) -> Drained | None:
        drained = await router_views.drain(self._bus, self._keys, pod, 0)
        await self._note_drain(pod, 0)
        return drained

    async def reset(self, pod: str) -> Reset | None:
        """Free a pod whose agent hangs: its allocations end, and the router ignores the calls that it names until it
        releases them. None: there is no such pod."""
        async with self._database.transaction() as tx:
            done = await store.reset(tx, pod)
        if done is None:
            return None
        status = await router_views.reset(self._bus, self._keys, pod, self._config.ended_ttl_s)
        ended = [row.call for row in done.rows if row.call]
        return Reset(ended, done.named, done.hanging, status or "unknown")

    async def _note_drain(self, pod: str, ttl_s: float) -> None:
        """While Postgres is away only the key in Valkey holds the drain; the leader copies it to Postgres later."""
        try:
            async with asyncio.timeout(REGISTER_S), self._database.connection() as conn:
                await store.drain(conn, pod, ttl_s)
        except UNAVAILABLE as error:
            log.warning("router.drain_unwritten", pod=pod, reason=str(error))

    async def counts(self) -> RouterCounts:
        return await router_views.counts(self._bus, self._keys)

    async def find(self, pod: str) -> PodView | None:
        return await router_views.pod_view(self._bus, self._keys, pod)

    async def pods(self, first: int, count: int) -> list[PodView]:
        return await router_views.pods(self._bus, self._keys, first, count)

    async def calls(self, first: int, count: int) -> list[RouterCall]:
        return await router_views.calls(self._bus, self._keys, first, count)


def _known(row: Registered | None) -> KnownPod:
    """None: the pod is not registered, and heartbeats do not register pods here."""
    if row is None:
        return KnownPod()
    return KnownPod(row.incarnation, row.tier, row.is_new, row.past_boots, row.newest_version)
