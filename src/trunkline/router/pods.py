"""Pods: takes in their heartbeats, drains and resets them, and exports their counts as metrics."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from trunkline.bus import router as bus_router
from trunkline.bus.router import BeatRule, RouterBus, Unregistered
from trunkline.control.raising import raise_alarm
from trunkline.crashpoint import crash_point
from trunkline.errors import BusUnavailable
from trunkline.loops.base import Loop
from trunkline.router.config import RouterConfig
from trunkline.router.registry import REGISTER_S, PodRegistry
from trunkline.routing import HeartbeatResult, PodHeartbeat, PodSuperseded, RegisteredPod
from trunkline.store import pods as store
from trunkline.store.database import UNAVAILABLE, Database
from trunkline.store.pods import Reset
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

# This many heartbeats of replaced processes within two minutes are not late ones: two clusters use the same names.
SUPERSEDED_ALARM = 3
GAUGES_S = 5.0

# Raises an alarm by its name, its subject and its detail.
Alarm = Callable[[str, str, Mapping[str, Any]], Awaitable[None]]


async def raise_if_reachable(database: Database, name: str, subject: str, detail: Mapping[str, Any]) -> None:
    """Postgres may be away for the same reason; the log and the metrics show the fault too."""
    try:
        await raise_alarm(database, name, subject, detail=detail)
    except UNAVAILABLE as error:
        log.error("router.alarm_unwritten", alarm=name, error=str(error))


class Pods:
    def __init__(
        self,
        bus: RouterBus,
        config: RouterConfig,
        database: Database,
        registry: PodRegistry | None = None,
        alarm: Alarm | None = None,
    ):
        self.bus = bus
        self._config = config
        self._database = database
        self.registry = registry or PodRegistry(database, bus, config)
        self._alarm = alarm

    async def heartbeat(self, beat: PodHeartbeat) -> HeartbeatResult | PodSuperseded:
        """Written to Valkey at once and to Postgres within a second; while one of them is away, to the other."""
        await self.registry.write_ahead(beat)
        try:
            reply = await self._to_valkey(beat)
        except BusUnavailable:
            reply = await self._to_postgres(beat)
        crash_point("router.after_heartbeat")
        if isinstance(reply, PodSuperseded):
            log.warning("router.pod_superseded", pod=beat.pod, boot_id=beat.boot_id, times=reply.times)
            if reply.times >= SUPERSEDED_ALARM and self._alarm is not None:
                await self._alarm("pod_name_twice", beat.pod, {})
        elif reply.is_news and reply.incarnation:
            self.registry.enqueue(beat, reply.incarnation)
        return reply

    async def _to_valkey(self, beat: PodHeartbeat) -> HeartbeatResult | PodSuperseded:
        rule = BeatRule(
            may_register=self._config.by_heartbeat,
            lease_ttl_s=self._config.lease_ttl_s,
            settle_ms=round(self._config.settle_s * 1000),
            tiers=self._config.tiers_text,
        )
        reply = await bus_router.heartbeat(self.bus, beat, rule)
        if isinstance(reply, Unregistered):
            known: RegisteredPod | PodSuperseded | None = None
            try:
                known = await self.registry.register(beat, reply.tiers)
            except UNAVAILABLE as error:
                log.warning("router.pod_unregistered", pod=beat.pod, reason=str(error))
            if isinstance(known, PodSuperseded):
                # Valkey may not have the earlier processes.
                return PodSuperseded(await bus_router.count_superseded(self.bus, beat.pod))
            reply = await bus_router.heartbeat(self.bus, beat, rule, known or RegisteredPod())
        assert not isinstance(reply, Unregistered), "the second request carries the registration"
        return reply

    async def _to_postgres(self, beat: PodHeartbeat) -> HeartbeatResult | PodSuperseded:
        """Valkey is away: register the pod in Postgres, so that calls still get it."""
        try:
            row = await self.registry.register(beat, {})
            if isinstance(row, PodSuperseded):
                return row
            async with self._database.connection() as conn:
                calls = await store.calls_of(conn, beat.pod)
        except UNAVAILABLE as error:
            raise BusUnavailable(f"neither Valkey nor Postgres answers: {error}") from error
        if row is None:
            return HeartbeatResult(False, "", False, (), 2.0, 1, 0)
        return HeartbeatResult(
            True, row.tier, beat.leaving, tuple(calls), 0.0, row.calls_max, row.incarnation
        )

    async def drain(self, pod: str, *, ends: bool = False) -> bus_router.Drained | None:
        """No new calls for `DRAINING_TTL`, or `ends` such a drain; live calls go on. None: there is no such pod."""
        ttl_s = 0 if ends else self._config.draining_ttl_s
        drained = await bus_router.drain(self.bus, pod, ttl_s)
        crash_point("router.after_drain")
        try:
            async with asyncio.timeout(REGISTER_S), self._database.connection() as conn:
                await store.drain(conn, pod, ttl_s)
        except UNAVAILABLE as error:
            # Only the key in Valkey holds the drain; the leader copies it to Postgres later.
            log.warning("router.drain_unwritten", pod=pod, reason=str(error))
        return drained

    async def reset(self, pod: str) -> Reset | None:
        """Free a pod whose agent hangs: its allocations end, and the router ignores the calls that it names until it
        releases them. None: there is no such pod."""
        async with self._database.transaction() as tx:
            done = await store.reset(tx, pod)
        if done is None:
            return None
        status = await bus_router.reset(self.bus, pod, self._config.ended_ttl_s)
        return replace(done, status=status or "unknown")


class PodGauges(Loop):
    """Shows pools, free capacity and the wait queue as metrics, for people and for an autoscaler."""

    name = "pod_gauges"

    def __init__(self, bus: RouterBus, interval_s: float = GAUGES_S):
        super().__init__(interval_s)
        self._bus = bus

    async def run_once(self) -> int:
        counts = await bus_router.counts(self._bus)
        metrics.ROUTER_CALLS.set(counts.calls)
        metrics.set_exactly(metrics.ROUTER_PODS, {pool.tier: pool.assigned for pool in counts.pools})
        metrics.set_exactly(metrics.ROUTER_FREE, {pool.tier: pool.room for pool in counts.pools})
        metrics.set_exactly(metrics.ROUTER_KEPT, {pool.tier: pool.kept for pool in counts.pools})
        metrics.set_exactly(metrics.ROUTER_WAITING, {pool.tier: pool.waiting for pool in counts.pools})
        return len(counts.pools)
