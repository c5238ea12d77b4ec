"""Pods in Postgres: registered when they come, and written down as they speak, many at a time."""

import asyncio
import re
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from uuid import UUID

from trunkline.bus import router as bus_router
from trunkline.bus.keys import RouterKeys
from trunkline.bus.router import Runner
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
# A call that a pod had is written again after so long. Postgres may have lost the first writing; whoever judges by a
# pod's silence waits for 5 s after the call.
ENDED_AGAIN_S = 4.0
# What pods say within this time is written together. What changes whether they take calls does not wait for it.
LINGER_S = 0.1
# A pod that names its next call is busy already, by its allocation; others do so within this time.
JOIN_LINGER_S = 0.02
BATCH_MAX = 500
KNOWN_MAX = 10_000
FORGET_S = 3600.0
_TEXT = re.compile(r"[es]\|(\d+)\|(\d+)(?:\|\d+)?")


class PodRegistry(Loop):
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
        # What pods said since the last write, and what was written of each, with their incarnations.
        self._news: dict[str, tuple[PodBeat, int]] = {}
        self._written: dict[str, tuple[PodBeat, int]] = {}
        self._written_at_s: dict[str, float] = {}
        # Calls that pods named since the last write, in this order, also those that they let go of meanwhile.
        self._joined: dict[tuple[str, str], None] = {}
        # Calls that pods said they had, and when that was written: every heartbeat says it again for a while.
        self._ended_at_s: dict[tuple[str, str], float] = {}
        self._wanted = asyncio.Event()
        self._flushing: asyncio.Task[None] | None = None
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
                self._written[beat.pod] = (before, answer.incarnation)
                self._written_at_s[beat.pod] = time.monotonic()
            for lost in answer.lost:
                metrics.ROUTER_ORPHANS.inc()
                log.warning("router.call_orphaned", call_id=lost.call or "", pod=beat.pod)
        return answer

    async def heard_first(self, beat: PodBeat) -> None:
        """Before Valkey is told that a pod takes calls again, or none any more: what Valkey proposes must be so in
        Postgres. Of a process that is known here only; waits for Postgres no longer than a registration does."""
        known = self._last(beat.pod)
        if known is None or known[0].boot_id != beat.boot_id or known[0].sequence >= beat.sequence:
            return
        is_urgent = _frees_or_moves(beat, known[0])
        if self.is_resting or not (is_urgent or set(beat.calls) - set(known[0].calls)):
            return
        self.heard(beat, known[1])
        try:
            await _within(REGISTER_S, self._flush(beat.pod) if is_urgent else self._flush_soon())
        except UNAVAILABLE:
            self._rests_until_s = time.monotonic() + REST_S

    def heard(self, beat: PodBeat, incarnation: int) -> None:
        """To be written soon, and never later than a second after it."""
        known = self._last(beat.pod)
        if known is not None and known[1] == incarnation and known[0].sequence >= beat.sequence:
            return
        before = known[0].calls if known is not None and known[1] == incarnation else ()
        self._joined.update(dict.fromkeys((beat.pod, call) for call in beat.calls if call not in before))
        self._news[beat.pod] = (beat, incarnation)
        self._wanted.set()

    def released(self, pod: str, call: str) -> None:
        """A pod let go of a call, and Postgres knows: a heartbeat that does not name it any more frees nothing."""
        for known in (self._news, self._written):
            if (said := known.get(pod)) is not None and call in said[0].calls:
                left = tuple(one for one in said[0].calls if one != call)
                known[pod] = (replace(said[0], calls=left), said[1])

    def _last(self, pod: str) -> tuple[PodBeat, int] | None:
        return self._news.get(pod) or self._written.get(pod)

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
            # In no transaction: a router that is stopped between two statements must not hold the row that every other
            # one advances before it writes.
            async with self._database.connection() as conn:
                await store.advance_hearing(conn)
            self._heard_at_s = time.monotonic()
        async with self._turn:
            return await self._write()

    async def _write(self) -> int:
        try:
            return await self._write_page()
        except UNAVAILABLE:
            # A crash of Postgres may have undone what was written a moment ago.
            self._ended_at_s.clear()
            raise

    async def _write_page(self) -> int:
        now_s = time.monotonic()
        page = dict(sorted(self._news.items())[:BATCH_MAX])
        if not page:
            return 0
        joined = [one for one in self._joined if one[0] in page]
        dropped = self._dropped(page)
        ended = self._ended(page, now_s)
        async with self._database.connection() as conn:
            if ended:
                # First: whoever sees that a pod was heard after a call takes its silence about the call for an answer.
                await store.join_calls(conn, ended)
            await store.write_beats(conn, list(page.values()))
        crash_point("router.after_beats")
        if joined or dropped:
            async with self._database.connection() as conn:
                if joined:
                    await store.join_calls(conn, joined)
                freed = await store.end_dropped(conn, dropped) if dropped else []
            await self._free(freed)
        self._ended_at_s |= dict.fromkeys(ended, now_s)
        for one in joined:
            self._joined.pop(one, None)
        for pod, said in page.items():
            self._written[pod] = said
            self._written_at_s[pod] = now_s
            if self._news.get(pod) == said:
                del self._news[pod]
        if self._news:
            self._wanted.set()
        self._forget(now_s)
        return len(page)

    def _ended(self, page: Mapping[str, tuple[PodBeat, int]], now_s: float) -> list[tuple[str, str]]:
        """What pods say of calls that are over, but for what was written a moment ago."""
        said = ((pod, call) for pod, (beat, _) in page.items() for call in beat.ended)
        return [one for one in said if now_s - self._ended_at_s.get(one, float("-inf")) >= ENDED_AGAIN_S]

    def _forget(self, now_s: float) -> None:
        """Names of pods that are gone, and of calls, are many in the end."""
        if len(self._ended_at_s) > KNOWN_MAX:
            fresh = {one: at_s for one, at_s in self._ended_at_s.items() if now_s - at_s < ENDED_AGAIN_S}
            self._ended_at_s = fresh
        if len(self._written) > KNOWN_MAX:
            for pod in [pod for pod, at_s in self._written_at_s.items() if now_s - at_s >= FORGET_S]:
                del self._written[pod], self._written_at_s[pod]

    async def _register(self, beat: PodBeat, tiers: Sequence[TierTarget]) -> Registered | Superseded | None:
        async with self._database.transaction() as tx:
            return await store.register(tx, beat, tiers, may_insert=self._config.by_heartbeat)

    async def _flush(self, pod: str) -> None:
        """Whoever comes while somebody writes is written with the next ones, together."""
        async with self._turn:
            if pod in self._news:
                await self._write()

    async def _flush_soon(self) -> None:
        """With what other pods say in the next moment."""
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._flush_later(), name="write heartbeats")
            self._flushing.add_done_callback(_look_at)
        await asyncio.shield(self._flushing)

    async def _flush_later(self) -> None:
        await asyncio.sleep(JOIN_LINGER_S)
        self._flushing = None
        async with self._turn:
            await self._write()

    def _dropped(self, page: Mapping[str, tuple[PodBeat, int]]) -> list[tuple[str, str]]:
        """Calls that pods named when they were last written, and name no more."""
        dropped: list[tuple[str, str]] = []
        for pod, (beat, incarnation) in page.items():
            written = self._written.get(pod)
            before = written[0].calls if written and written[1] == incarnation else ()
            dropped += [(pod, call) for call in before if call not in beat.calls]
        return dropped

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


def _frees_or_moves(said: PodBeat, before: PodBeat) -> bool:
    """Whether it takes calls again, none any more, or elsewhere. One that does not follow right after `before` may have
    named a call to another process."""
    is_gap = said.sequence != before.sequence + 1
    if (is_gap and not said.calls) or not set(before.calls) <= set(said.calls):
        return True
    return (said.leaving, said.base_url, said.ip, said.port, said.interval_s, said.hanging) != (
        before.leaving, before.base_url, before.ip, before.port, before.interval_s, before.hanging,
    )  # fmt: skip


async def _within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """In a task of its own: the driver does not let go of a connection to a server that hangs; who asks has to."""
    asked = asyncio.create_task(work, name="ask postgres")
    await asyncio.wait({asked}, timeout=seconds)
    if not asked.done():
        asked.cancel()
        asked.add_done_callback(_look_at)
        raise TimeoutError(f"Postgres was silent for {seconds} s")
    return asked.result()


def _look_at(late: "asyncio.Task[Any]") -> None:
    """There may be nobody left to tell."""
    if not late.cancelled():
        late.exception()
