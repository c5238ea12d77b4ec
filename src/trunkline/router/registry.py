"""Registers pods in Postgres, and writes their heartbeats there in batches."""

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from uuid import UUID

from trunkline.bus import router as bus_router
from trunkline.bus.router import RouterBus
from trunkline.crashpoint import crash_point
from trunkline.errors import BusUnavailable
from trunkline.in_time import in_time
from trunkline.loops.base import PROMPT_BACKOFF_MAX_S, Loop
from trunkline.router.config import RouterConfig
from trunkline.routing import PodHeartbeat, PodSuperseded, RegisteredPod
from trunkline.store import pods as store
from trunkline.store.database import UNAVAILABLE, Database
from trunkline.store.pods import TierTarget
from trunkline.telemetry import get_logger, metrics
from trunkline.value import replace

log = get_logger(__name__)

T = TypeVar("T")

# How long a new pod waits for Postgres; then only Valkey has it until Postgres is back.
REGISTER_S = 0.5
# No request to Postgres for this long after a failure: heartbeats must not queue up behind it.
BACKOFF_S = 2.0
INTERVAL_S = 1.0
# When an ended call is written again: Postgres may have lost the first write. The checks that conclude from a pod's
# silence about a call wait 5 s after its end.
ENDED_AGAIN_S = 4.0
# Heartbeats that come in within this time are written together. A change of whether a pod takes calls does not wait.
BATCH_DELAY_S = 0.1
# The same for heartbeats that name a new call: its allocation makes the pod busy already.
JOIN_DELAY_S = 0.02
BATCH_MAX = 500
CACHED_MAX = 10_000
CACHE_TTL_S = 3600.0
_TEXT = re.compile(r"[es]\|(\d+)\|(\d+)(?:\|\d+)?")


class PodRegistry(Loop):
    """Every router process has one. Heartbeats that it could not write stay queued until it can."""

    name = "pod_registry"
    backoff_max_s = PROMPT_BACKOFF_MAX_S

    def __init__(self, database: Database, bus: RouterBus, config: RouterConfig):
        super().__init__(INTERVAL_S)
        self._database = database
        self._bus = bus
        self._config = config
        self._backoff_until_s = 0.0
        self._marked_at_s = float("-inf")
        # Heartbeats since the last write, and the last written one of each pod, with their incarnations.
        self._pending: dict[str, tuple[PodHeartbeat, int]] = {}
        self._written: dict[str, tuple[PodHeartbeat, int]] = {}
        self._written_at_s: dict[str, float] = {}
        # Calls that pods named since the last write, in this order, including those released meanwhile.
        self._joined: dict[tuple[str, str], None] = {}
        # Ended calls of pods, and when they were written: heartbeats repeat them for a while.
        self._ended_at_s: dict[tuple[str, str], float] = {}
        self._wanted = asyncio.Event()
        self._flushing: asyncio.Task[None] | None = None
        self._write_lock = asyncio.Lock()

    async def register(
        self, beat: PodHeartbeat, tiers: Mapping[str, str]
    ) -> RegisteredPod | PodSuperseded | None:
        """None: the pod is not registered, and heartbeats do not register pods here. Raises one of `UNAVAILABLE` while
        Postgres is away. `tiers` as published in Valkey; none: those of this process."""
        if self.is_backing_off:
            raise TimeoutError("Postgres was silent lately")
        try:
            answer = await in_time(REGISTER_S, self._register(beat, self._targets(tiers)))
        except UNAVAILABLE:
            self._backoff_until_s = time.monotonic() + BACKOFF_S
            raise
        crash_point("router.after_register")
        if isinstance(answer, RegisteredPod):
            written = self._written.get(beat.pod)
            if written is None or written[1] != answer.incarnation:
                # Every call that it names is new.
                before = replace(beat, calls=(), sequence=beat.sequence - 1)
                self._written[beat.pod] = (before, answer.incarnation)
                self._written_at_s[beat.pod] = time.monotonic()
            for lost in answer.lost:
                metrics.ROUTER_ORPHANS.inc()
                log.warning("router.call_orphaned", call_id=lost.call or "", pod=beat.pod)
        return answer

    async def write_ahead(self, beat: PodHeartbeat) -> None:
        """Write to Postgres before Valkey marks a pod free or leaving: what Valkey proposes must hold in Postgres. Only
        for pods that this process has seen; waits for Postgres no longer than a registration does."""
        known = self._last(beat.pod)
        if known is None or known[0].boot_id != beat.boot_id or known[0].sequence >= beat.sequence:
            return
        is_urgent = _frees_or_moves(beat, known[0])
        if self.is_backing_off or not (is_urgent or set(beat.calls) - set(known[0].calls)):
            return
        self.enqueue(beat, known[1])
        try:
            await in_time(REGISTER_S, self._flush(beat.pod) if is_urgent else self._flush_soon())
        except UNAVAILABLE:
            self._backoff_until_s = time.monotonic() + BACKOFF_S

    def enqueue(self, beat: PodHeartbeat, incarnation: int) -> None:
        """The loop writes it within a second."""
        known = self._last(beat.pod)
        if known is not None and known[1] == incarnation and known[0].sequence >= beat.sequence:
            return
        before = known[0].calls if known is not None and known[1] == incarnation else ()
        self._joined.update(dict.fromkeys((beat.pod, call) for call in beat.calls if call not in before))
        self._pending[beat.pod] = (beat, incarnation)
        self._wanted.set()

    def released(self, pod: str, call: str) -> None:
        """A pod released a call, and Postgres has it: a later heartbeat without this call frees nothing more."""
        for beats in (self._pending, self._written):
            if (entry := beats.get(pod)) is not None and call in entry[0].calls:
                left = tuple(filter(call.__ne__, entry[0].calls))
                beats[pod] = (replace(entry[0], calls=left), entry[1])

    def _last(self, pod: str) -> tuple[PodHeartbeat, int] | None:
        return self._pending.get(pod) or self._written.get(pod)

    def mark_receiving(self) -> None:
        """Let the next write record that this router receives heartbeats."""
        self._marked_at_s = float("-inf")

    @property
    def is_backing_off(self) -> bool:
        """Postgres failed less than `BACKOFF_S` ago."""
        return time.monotonic() < self._backoff_until_s

    async def wait(self) -> None:
        try:
            async with asyncio.timeout(INTERVAL_S):
                await self._wanted.wait()
                await self.pause(BATCH_DELAY_S)
        except TimeoutError:
            pass

    def stop(self) -> None:
        super().stop()
        self._wanted.set()

    async def run_once(self) -> int:
        self._wanted.clear()
        with suppress(BusUnavailable):
            await bus_router.mark_receiving(self._bus, gap_max_s=self._config.receiving_gap_max_s)
        return await self.write()

    async def write(self) -> int:
        """Heartbeats that could not be written are retried; a later one of the same pod replaces them."""
        if time.monotonic() - self._marked_at_s >= INTERVAL_S / 2:
            # Outside a transaction: a router that is paused between two statements must not lock the row that all
            # others advance before they write.
            async with self._database.connection() as conn:
                await store.mark_receiving(conn)
            self._marked_at_s = time.monotonic()
        async with self._write_lock:
            return await self._write()

    async def _write(self) -> int:
        now_s = time.monotonic()
        page = dict(sorted(self._pending.items())[:BATCH_MAX])
        if not page:
            return 0
        joined = [pair for pair in self._joined if pair[0] in page]
        # Calls that pods' last written heartbeats named, and the new ones do not.
        dropped: list[tuple[str, str]] = []
        # Ended calls that pods report, except those written less than `ENDED_AGAIN_S` ago.
        ended: list[tuple[str, str]] = []
        for pod, (beat, incarnation) in page.items():
            written = self._written.get(pod)
            before = written[0].calls if written and written[1] == incarnation else ()
            dropped += [(pod, call) for call in before if call not in beat.calls]
            since_s = {call: now_s - self._ended_at_s.get((pod, call), float("-inf")) for call in beat.ended}
            ended += [(pod, call) for call in beat.ended if since_s[call] >= ENDED_AGAIN_S]
        freed: list[UUID] = []
        try:
            async with self._database.connection() as conn:
                if ended:
                    # First: readers take a heartbeat after the end of a call that does not name it for the pod's
                    # answer.
                    await store.join_calls(conn, ended)
                await store.write_beats(conn, list(page.values()))
            crash_point("router.after_beats")
            if joined or dropped:
                async with self._database.connection() as conn:
                    if joined:
                        await store.join_calls(conn, joined)
                    freed = await store.end_dropped(conn, dropped) if dropped else []
        except UNAVAILABLE:
            # A crash of Postgres may have undone the latest writes.
            self._ended_at_s.clear()
            raise
        if freed:
            try:
                await bus_router.free(self._bus, freed, tombstone_s=self._config.ended_ttl_s)
            except BusUnavailable as error:
                log.info("router.valkey_not_updated", reason=str(error))
        self._ended_at_s |= dict.fromkeys(ended, now_s)
        for pair in joined:
            self._joined.pop(pair, None)
        for pod, entry in page.items():
            self._written[pod] = entry
            self._written_at_s[pod] = now_s
            if self._pending.get(pod) == entry:
                del self._pending[pod]
        if self._pending:
            self._wanted.set()
        self._evict(now_s)
        return len(page)

    def _evict(self, now_s: float) -> None:
        """Bound the tables: pods and calls that are gone would add up."""
        if len(self._ended_at_s) > CACHED_MAX:
            fresh = {pair: at_s for pair, at_s in self._ended_at_s.items() if now_s - at_s < ENDED_AGAIN_S}
            self._ended_at_s = fresh
        if len(self._written) > CACHED_MAX:
            for pod in [pod for pod, at_s in self._written_at_s.items() if now_s - at_s >= CACHE_TTL_S]:
                del self._written[pod], self._written_at_s[pod]

    async def _register(
        self, beat: PodHeartbeat, tiers: Sequence[TierTarget]
    ) -> RegisteredPod | PodSuperseded | None:
        async with self._database.transaction() as tx:
            return await store.register(tx, beat, tiers, may_insert=self._config.by_heartbeat)

    async def _flush(self, pod: str) -> None:
        """Heartbeats that come in during a write share the next one."""
        async with self._write_lock:
            if pod in self._pending:
                await self._write()

    async def _flush_soon(self) -> None:
        """Write together with other pods' heartbeats of the next `JOIN_DELAY_S`."""
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._flush_later(), name="write heartbeats")
            self._flushing.add_done_callback(_consume_exception)
        await asyncio.shield(self._flushing)

    async def _flush_later(self) -> None:
        await asyncio.sleep(JOIN_DELAY_S)
        self._flushing = None
        async with self._write_lock:
            await self._write()

    def _targets(self, published: Mapping[str, str]) -> list[TierTarget]:
        if "#order" not in published:
            return self._config.targets
        matches = {name: _TEXT.fullmatch(text) for name, text in published.items()}
        order = published["#order"].split()
        return [TierTarget(n, int(m[1]), int(m[2])) for n in order if (m := matches.get(n)) is not None]


def _frees_or_moves(beat: PodHeartbeat, before: PodHeartbeat) -> bool:
    """Whether the pod became free, is leaving, or has another address. After a gap in the sequence another router
    process may have received a heartbeat that named a call."""
    is_gap = beat.sequence != before.sequence + 1
    if (is_gap and not beat.calls) or not set(before.calls) <= set(beat.calls):
        return True
    return (beat.leaving, beat.base_url, beat.ip, beat.port, beat.interval_s, beat.hanging) != (
        before.leaving, before.base_url, before.ip, before.port, before.interval_s, before.hanging,
    )  # fmt: skip


def _consume_exception(task: "asyncio.Task[Any]") -> None:
    """Its caller may have stopped waiting; asyncio would log the exception as never retrieved."""
    if not task.cancelled():
        task.exception()
