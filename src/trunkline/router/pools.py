"""Makes Valkey's pools equal to the pods and allocations in Postgres. Only the leader runs it.

Valkey proposes and Postgres decides, so a difference costs a conflict and no call. Each run writes what it read; what
changed meanwhile carries a newer incarnation, or is not proven yet, and is left alone.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TypeVar
from uuid import UUID

from trunkline.bus import router_manager
from trunkline.bus.router import RouterBus
from trunkline.bus.router_manager import PAGE, ProjectedPod, Term
from trunkline.crashpoint import crash_point
from trunkline.router.config import RouterConfig
from trunkline.routing import Allocation, Pod
from trunkline.store import pods as store
from trunkline.store.database import Database
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

T = TypeVar("T")

# Rows that were read are written into Valkey within this time, or read again: proposals are proven after 5 s.
FRESH_S = 3.0


class Pools:
    def __init__(self, database: Database, bus: RouterBus, config: RouterConfig):
        self._database = database
        self._bus = bus
        self._lease_ttl_s = config.lease_ttl_s
        self._ended_ttl_s = config.ended_ttl_s
        self._young_s = config.postgres_young_s
        self._fixed = 0

    async def rebuild(self, term: Term, lost_for_s: float) -> tuple[int, int]:
        """Write all pods after Valkey lost its projection: idle pods are free at once, busy and reserved ones are not.
        If Postgres itself started after the loss or less than `postgres_young_s` ago, a pod that looks free has to send
        a heartbeat first. Returns the numbers of pods and allocations."""
        async with self._database.connection() as conn:
            age_s = await store.postgres_age_s(conn)
            ended = await store.ended_lately(conn, self._ended_ttl_s)
            version = await store.newest_version(conn)
        await term.set_version(version)
        await term.bury(ended)
        is_certain = age_s > max(self._young_s, lost_for_s)
        names = await self._names()
        rows = 0
        for page in _pages(names):
            rows += await self._put(term, page, is_certain=is_certain)
            crash_point("router.after_restore")
        await self._remove_others(term, {*names})
        await term.rebuilt()
        return len(names), rows

    async def put_all(self, term: Term) -> int:
        """Correct all pods. Returns how many differed."""
        self._fixed = 0
        names = await self._names()
        for page in _pages(names):
            await self._put(term, page)
            crash_point("router.after_recover")
        await self._remove_others(term, {*names})
        # The pages above marked the calls that an operator reset by hand.
        await self.prove(term)
        async with self._database.connection() as conn:
            version = await store.newest_version(conn)
        await term.set_version(version)
        return self._fixed

    async def put(self, term: Term, names: Sequence[str]) -> None:
        for page in _pages(sorted(names)):
            await self._put(term, page, is_certain=True)

    async def prove(self, term: Term) -> int:
        """Free proposals without a row, correct those with one, and end calls that an operator reset by hand. Returns
        how many were freed or reset."""
        unproven = await term.unproven()
        if not unproven.ids and not unproven.reset:
            return 0
        async with self._database.connection() as conn:
            rows = await store.rows_by_id(conn, [uuid for text in unproven.ids if (uuid := _uuid(text))])
            await store.end_rows(conn, [uuid for text in unproven.reset if (uuid := _uuid(text))], "reset")
        crash_point("router.after_reset")
        for call_and_pod in unproven.reset.values():
            call_sid, _, pod = call_and_pod.partition(" ")
            log.warning("router.call_reset", call_id=call_sid, pod=pod)
        live = {str(row.id) for row in rows}
        rowless = [text for text in unproven.ids if text not in live and text.replace("-", "") not in live]
        freed = await term.prove(rows, rowless, [*unproven.reset], lease_ttl_s=self._lease_ttl_s)
        return freed + len(unproven.reset)

    async def _names(self) -> list[str]:
        async with self._database.connection() as conn:
            return [pod.name for pod in await store.pods(conn)]

    async def _put(self, term: Term, names: Sequence[str], *, is_certain: bool | None = None) -> int:
        """`is_certain`: pods that look free are free; None: leave it as Valkey has it."""
        while True:
            read_s = time.monotonic()
            async with self._database.connection() as conn:
                pods = await store.pods(conn, names)
                rows = await store.live_rows(conn, names)
            if time.monotonic() - read_s < FRESH_S:
                break
        by_pod: dict[str, list[Allocation]] = defaultdict(list)
        for row in rows:
            by_pod[row.pod].append(row)
        projected = [
            ProjectedPod(pod, by_pod[pod.name], _is_certain(pod, by_pod[pod.name], is_certain))
            for pod in pods
        ]
        put = await term.put(projected, lease_ttl_s=self._lease_ttl_s)
        self._fixed += put.fixed
        if put.drains:
            async with self._database.connection() as conn:
                for pod_name, ttl_s in put.drains.items():
                    await store.drain(conn, pod_name, ttl_s)
        return len(rows)

    async def _remove_others(self, term: Term, names: set[str]) -> None:
        """Remove pods that Valkey has and Postgres has not. Pods that registered while Postgres was away have no
        incarnation yet; their next heartbeat registers them."""
        census = await router_manager.census(self._bus)
        others = [pod for pods in census.values() for pod in pods if pod not in names]
        if not others:
            return
        async with self._database.connection() as conn:
            existing = await store.existing(conn, others)
        for pod in others:
            if pod not in existing and await term.remove(pod, oldest=1):
                log.warning("router.pod_unknown", pod=pod)
                metrics.ROUTER_RECOVERED.inc()


def _is_certain(pod: Pod, rows: Sequence[Allocation], is_certain: bool | None) -> bool:
    if is_certain is None:
        # A pod that sends heartbeats becomes free by the next one.
        return pod.sequence == 0
    return is_certain or bool(rows)


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _pages(names: Sequence[T]) -> Iterator[Sequence[T]]:
    return (names[i : i + PAGE] for i in range(0, len(names), PAGE))
