"""Pods in Postgres: registered when they come, and written down as they speak, many at a time."""

import asyncio
import re
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from uuid import UUID

from trunkline.bus import router as bus_router
from trunkline.bus.router import Runner
from trunkline.bus.router_keys import RouterKeys
from trunkline.crashpoint import crash_point
from trunkline.errors import BusUnavailable
from trunkline.loops.base import PROMPT_BACKOFF_MAX_S, Loop
from trunkline.router.config import RouterConfig
from trunkline.settings.tiers import assignment_order
from trunkline.store import pods as store
from trunkline.store.database import UNAVAILABLE, Database
from trunkline.store.pods import PodBeat, Registered, Superseded, TierTarget
from trunkline.telemetry import get_logger, metrics
from trunkline.value import replace

log = get_logger(__name__)

T = TypeVar("T")

# A pod that comes waits so long for Postgres; then Valkey alone knows it until Postgres is back.
REGISTER_S = 0.5
# After a failure Postgres is not asked for so long: heartbeats must not queue up behind it.
REST_S = 2.0
INTERVAL_S = 1.0
# What pods say within this time is written together. What changes whether they take calls does not wait for it.
LINGER_S = 0.1
BATCH_MAX = 500
KNOWN_MAX = 10_000
FORGET_S = 3600.0
_TEXT = re.compile(r"[es]\|(\d+)\|(\d+)(?:\|\d+)?")


class Registry(Loop):
    """Every router process has one. What it could not write stays until it can."""

    name = "pod_registry"
    backoff_max_s = PROMPT_BACKOFF_MAX_S

    def __init__(self, database: Database, bus: Runner, keys: RouterKeys, config: RouterConfig):
        super().__init__(INTERVAL_S)
        self._database = database
        self._bus = bus
        self._keys = keys
        self._config = config
        self._rests_until_s = 0.0
        self._heard_at_s = float("-inf")
        # What pods said since the last write, and what was written of each: said, incarnation, when.
        self._news: dict[str, tuple[PodBeat, int]] = {}
        self._written: dict[str, tuple[PodBeat, int, float]] = {}
        self._wanted = asyncio.Event()
        # One writes at a time.
        self._turn = asyncio.Lock()

    async def register(self, beat: PodBeat, tiers: Mapping[str, str]) -> Registered | Superseded | None:
        """None: nobody knows it and heartbeats make no pods here. Raises what `UNAVAILABLE` names where Postgres cannot
        be asked. `tiers` as they were published; none: our own."""
        if self.is_resting:
            raise TimeoutError("Postgres was silent lately")
        try:
            answer = await _within(REGISTER_S, self._register(beat, self._targets(tiers)))
        except UNAVAILABLE:
            self._rests_until_s = time.monotonic() + REST_S
            raise
        crash_point("router.after_register")
        if isinstance(answer, Registered):
            written = self._written.get(beat.pod)
            if written is None or written[1] != answer.incarnation:
                # Whatever it names is news.
                before = replace(beat, calls=(), sequence=beat.sequence - 1)
                self._written[beat.pod] = (before, answer.incarnation, time.monotonic())
            for lost in answer.lost:
                metrics.ROUTER_ORPHANS.inc()
                log.warning("router.call_orphaned", call_id=lost.call or "", pod=beat.pod)
        return answer

    async def heard_first(self, beat: PodBeat) -> None:
        """Before Valkey is told that a pod takes calls again, or none any more: what Valkey proposes must be so in
        Postgres. Of a process that is known here only; waits for Postgres no longer than a registration does."""
        written = self._written.get(beat.pod)
        if written is None or written[0].boot_id != beat.boot_id or written[0].sequence >= beat.sequence:
            return
        if not _differs(beat, written[0]) or self.is_resting:
            return
        self.heard(beat, written[1])
        try:
            await _within(REGISTER_S, self._flush(beat.pod))
        except UNAVAILABLE:
            self._rests_until_s = time.monotonic() + REST_S

    def heard(self, beat: PodBeat, incarnation: int) -> None:
        """To be written soon, and never later than a second after it."""
        for known in (self._news.get(beat.pod), self._written.get(beat.pod)):
            if known is not None and known[1] == incarnation and known[0].sequence >= beat.sequence:
                return
        self._news[beat.pod] = (beat, incarnation)
        self._wanted.set()

    def heard_again(self) -> None:
        """Say with the next write that heartbeats can be heard."""
        self._heard_at_s = float("-inf")

    @property
    def is_resting(self) -> bool:
        """Postgres was silent lately."""
        return time.monotonic() < self._rests_until_s

    async def wait(self) -> None:
        try:
            async with asyncio.timeout(INTERVAL_S):
                await self._wanted.wait()
                await self.pause(LINGER_S)
        except TimeoutError:
            pass

    def stop(self) -> None:
        super().stop()
        self._wanted.set()

    async def run_once(self) -> int:
        self._wanted.clear()
        with suppress(BusUnavailable):
            await bus_router.hearing(self._bus, self._keys, gap_max_s=self._config.hearing_gap_max_s)
        return await self.write()

    async def write(self) -> int:
        """What could not be written is tried again; a later heartbeat of the same pod takes its place."""
        if time.monotonic() - self._heard_at_s >= INTERVAL_S / 2:
            async with self._database.transaction() as tx:
                await store.advance_hearing(tx)
            self._heard_at_s = time.monotonic()
        async with self._turn:
            return await self._write()

    async def _write(self) -> int:
        now_s = time.monotonic()
        page = dict(sorted(self._news.items())[:BATCH_MAX])
        if not page:
            return 0
        joined, dropped = self._changed(page)
        async with self._database.transaction() as tx:
            await store.write_beats(tx, list(page.values()))
        crash_point("router.after_beats")
        async with self._database.connection() as conn:
            if joined:
                await store.join_calls(conn, joined)
            ended = await store.end_dropped(conn, dropped) if dropped else []
        await self._free(ended)
        for pod, (beat, incarnation) in page.items():
            self._written[pod] = (beat, incarnation, now_s)
            if self._news.get(pod) == (beat, incarnation):
                del self._news[pod]
        if self._news:
            self._wanted.set()
        self._forget(now_s)
        return len(page)

    def _forget(self, now_s: float) -> None:
        """Names of pods that are gone are many in the end."""
        if len(self._written) > KNOWN_MAX:
            self._written = {
                pod: known for pod, known in self._written.items() if now_s - known[2] < FORGET_S
            }

    async def _register(self, beat: PodBeat, tiers: Sequence[TierTarget]) -> Registered | Superseded | None:
        async with self._database.transaction() as tx:
            return await store.register(tx, beat, tiers, may_insert=self._config.by_heartbeat)

    async def _flush(self, pod: str) -> None:
        """Whoever comes while somebody writes is written with the next ones, together."""
        async with self._turn:
            if pod in self._news:
                await self._write()

    def _changed(
        self, page: Mapping[str, tuple[PodBeat, int]]
    ) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """Calls that pods name since the last write, and those that they name no more."""
        joined: list[tuple[str, str]] = []
        dropped: list[tuple[str, str]] = []
        for pod, (beat, incarnation) in page.items():
            written = self._written.get(pod)
            before = written[0].calls if written and written[1] == incarnation else ()
            joined += [(pod, call) for call in beat.calls if call not in before]
            dropped += [(pod, call) for call in before if call not in beat.calls]
        return joined, dropped

    async def _free(self, ended: Sequence[UUID]) -> None:
        if not ended:
            return
        try:
            await bus_router.free(
                self._bus, self._keys, [str(one) for one in ended], tombstone_s=self._config.ended_ttl_s
            )
        except BusUnavailable as error:
            log.info("router.valkey_untold", reason=str(error))

    def _targets(self, published: Mapping[str, str]) -> list[TierTarget]:
        if "#order" not in published:
            tiers = self._config.tiers
            return [
                TierTarget(name, tiers[name].target, tiers[name].max_concurrent)
                for name in assignment_order(tiers)
            ]
        found = {name: _TEXT.fullmatch(text) for name, text in published.items()}
        order = published["#order"].split()
        return [TierTarget(n, int(m[1]), int(m[2])) for n in order if (m := found.get(n)) is not None]


def _differs(said: PodBeat, before: PodBeat) -> bool:
    """Whether it is worth a write. One that does not follow right after `before` may have spoken to another process."""
    if said.sequence != before.sequence + 1:
        return True
    return (said.leaving, said.calls, said.base_url, said.ip, said.port, said.interval_s) != (
        before.leaving, before.calls, before.base_url, before.ip, before.port, before.interval_s,
    )  # fmt: skip


async def _within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """In a task of its own: the driver does not let go of a connection to a server that hangs; who asks has to."""
    asked = asyncio.create_task(work, name="ask postgres")
    await asyncio.wait({asked}, timeout=seconds)
    if not asked.done():
        asked.cancel()
        asked.add_done_callback(lambda late: late.cancelled() or late.exception())
        raise TimeoutError(f"Postgres was silent for {seconds} s")
    return asked.result()
