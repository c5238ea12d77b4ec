"""Gives answered calls their pods and takes them back.

Postgres decides, under its unique indexes; Valkey proposes, which saves the search for a free pod. While one of them
does not answer the other decides alone: Postgres picks, or Valkey's proposal counts and is written later. Every wait is
bounded, because a person waits on the phone: 150 ms for Valkey, 600 ms for both together.
"""

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

from trunkline.bus import router as bus_router
from trunkline.bus.keys import RouterKeys
from trunkline.bus.router import Allocation, BegunCall, CallOver, NoPod, QueuedForPod, Runner, Stale
from trunkline.crashpoint import crash_point
from trunkline.errors import BusUnavailable
from trunkline.in_time import in_time
from trunkline.model import Slot, new_id
from trunkline.router.allocation_notes import AllocationNotes, Note
from trunkline.router.config import RouterConfig
from trunkline.router.engine_breaker import EngineBreaker
from trunkline.router.streams import StreamKeys, stream_url
from trunkline.settings.tiers import chain
from trunkline.store import allocations, resumptions
from trunkline.store.allocations import Address, AllocationRequest, Release, Unallocated
from trunkline.store.database import ROW_HELD, UNAVAILABLE, Database, is_of_database
from trunkline.store.group_commit import GroupCommit
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

T = TypeVar("T")

VALKEY_S = 0.15
ENGINES_S = 0.6
# A merchant's tier changes rarely; a call that comes within this after a change may still go to the old one.
TIER_FRESH_S = 5.0


@dataclass(frozen=True, slots=True)
class Allocated:
    """The call's pod. The carrier connects to `ws_url` and hands over `token` as a parameter of the stream. `turn`: how
    often the call was given another pod before."""

    pod: str
    ws_url: str
    token: str = field(repr=False)
    source_pool: str
    allocated_at: datetime
    was_existing: bool
    turn: int = 0


@dataclass(frozen=True, slots=True)
class NoneFree:
    """No pod is free. `is_known` False: neither engine answered."""

    is_known: bool = True


@dataclass(frozen=True, slots=True)
class PodWait:
    """No pod is free yet: retry in `retry_s`. `before` calls wait before this one."""

    before: int
    retry_s: int


@dataclass(frozen=True, slots=True)
class MustHangUp:
    """Hang up: the call is over (a duplicate of its answer webhook came late), was superseded by a newer attempt, or is
    not the one that its attempt has."""

    reason: str = "ended"


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The attempt was written off, and now its call is answered: it has to be reattached before it gets a pod."""


@dataclass(frozen=True, slots=True)
class Released:
    pod: str
    source_pool: str
    was_draining: bool


@dataclass(frozen=True, slots=True)
class NotAllocated:
    """This call has no pod: it was released already, or never had one."""


class EngineSilent(Exception):
    """An engine did not answer in time."""


class Allocator:
    """`database` is a small pool of its own: an answered call does not wait behind a report."""

    def __init__(
        self,
        bus: Runner,
        keys: RouterKeys,
        stream_keys: StreamKeys,
        config: RouterConfig,
        database: Database,
        notes: AllocationNotes,
    ):
        self._bus = bus
        self._keys = keys
        self._stream_keys = stream_keys
        self._config = config
        self._database = database
        self._notes = notes
        self._new_calls = GroupCommit(database, allocations.allocate_new, ENGINES_S)
        self._releases = GroupCommit(database, allocations.release, ENGINES_S)
        self._valkey = EngineBreaker()
        self._postgres = EngineBreaker()
        self._chains: dict[str, tuple[float, tuple[str, ...]]] = {}
        self._telling: set[asyncio.Task[None]] = set()

    async def begin(self, attempt_id: UUID, call_sid: str) -> Allocated | None:
        """Begin a call whose slot was reserved with its dial. None: none is reserved. Raises `EngineSilent`."""
        kept = await self._ask_postgres(self._begin(attempt_id, call_sid), ENGINES_S)
        if kept is None:
            return None
        self._tell(kept, call_sid)
        metrics.ROUTER_ALLOCATIONS.labels("kept").inc()
        return self._allocated(call_sid, kept)

    async def allocate(
        self,
        call_sid: str,
        merchant_id: str = "",
        *,
        attempt_id: UUID | None = None,
        may_wait: bool = False,
        turn: int = 0,
    ) -> Allocated | NoneFree | PodWait | MustHangUp | GivenUp:
        """Idempotent: every request for one call gets the same pod and the same token. `turn`: how often its agent was
        lost, also where no row could be told so."""
        began_s = time.monotonic()
        allocation_id = attempt_id or new_id()
        proposed = None
        # A call that lost its agent gets a pod that sent a heartbeat since, and Postgres picks it: Valkey would propose
        # one dead pod after the other, and the pod that lost the call may have reported to it that the call is over.
        if not turn:
            proposed = await self._propose(call_sid, merchant_id, allocation_id, may_wait=may_wait)
        if isinstance(proposed, CallOver):
            metrics.ROUTER_ALLOCATIONS.labels("ended").inc()
            return MustHangUp()
        crash_point("router.after_allocate")
        slot = _slot(proposed)
        asked = AllocationRequest(
            allocation_id,
            call_sid,
            attempt_id,
            merchant_id,
            slot,
            wait_max_s=self._config.hold_max_s if may_wait else 0.0,
            silence_s=self._config.wait_rule.silence_ms / 1000,
            tombstone_s=self._config.ended_ttl_s,
        )
        try:
            decided: allocations.Allocation | Unallocated | None = None
            if attempt_id is None and slot is not None:
                decided = await self._ask_postgres(self._give_new(asked), None)
            if decided is None:
                left_s = began_s + ENGINES_S - time.monotonic()
                decided = await self._ask_postgres(self._decide(asked), left_s)
        except EngineSilent:
            return await self._without_postgres(
                call_sid, merchant_id, allocation_id, attempt_id, proposed, may_wait=may_wait, turn=turn
            )
        if isinstance(decided, Unallocated):
            return await self._refused(decided, proposed)
        return self._given(call_sid, merchant_id, decided, proposed, turn)

    async def release(
        self, call_sid: str, by_pod: str = "", turn: int | None = None
    ) -> Released | NotAllocated:
        """Idempotent. `by_pod`: the pod, if the pod itself releases the call; `turn`: which of the call's streams it
        had: an older one ends nothing."""
        row = None
        try:
            over = Release(call_sid, new_id(), by_pod, turn)
            row = await self._ask_postgres(self._releases.ask(over), None)
            if row is None and turn is not None and await self.ask(self._is_resumed(call_sid, turn)):
                # No release to Valkey either: its tombstone would keep the call from its next agent.
                return NotAllocated()
        except EngineSilent as error:
            log.warning("router.release_not_written", call_id=call_sid, reason=str(error))
            self._notes.over(call_sid, by_pod, turn)
        crash_point("router.after_release")
        try:
            told = await bus_router.release(
                self._bus, self._keys, call_sid, by_pod=by_pod, ended_ttl_s=self._config.ended_ttl_s
            )
        except BusUnavailable as error:
            if row is None:
                raise
            log.warning("router.release_not_projected", call_id=call_sid, reason=str(error))
            told = None
        if told is not None:
            return Released(told.pod, told.source_pool, told.was_draining)
        if row is None or row.pod is None:
            return NotAllocated()
        return Released(row.pod, row.source_pool, was_draining=False)

    def from_url(self, address: Address, call_sid: str, attempt_id: UUID) -> Allocated:
        """The pod that the answer URL names, while Postgres is silent. The write follows; where the row says otherwise
        by then, the row wins."""
        self._notes.begun(Note(attempt_id, call_sid, has_attempt=True))
        metrics.ROUTER_ALLOCATIONS.labels("url").inc()
        url = stream_url(address.base_url or self._config.voice_agent_base_url, address.pod, call_sid)
        token = self._stream_keys.sign(address.pod, call_sid, attempt_id.hex)
        return Allocated(address.pod, url, token, "", datetime.now(UTC), was_existing=True)

    async def ask(self, question: Coroutine[Any, Any, T]) -> T:
        """Another question about an answered call. Raises `EngineSilent`."""
        return await self._ask_postgres(question, ENGINES_S)

    async def drain(self) -> None:
        """Wait until all background writes to Valkey are done."""
        if self._telling:
            await asyncio.wait(self._telling)

    async def _propose(
        self, call_sid: str, merchant_id: str, allocation_id: UUID, *, may_wait: bool, is_alone: bool = False
    ) -> Allocation | NoPod | QueuedForPod | CallOver | None:
        """None: Valkey does not answer, or its projection was lost and is not rebuilt yet."""
        if self._valkey.is_open:
            return None
        try:
            async with asyncio.timeout(VALKEY_S):
                proposed = await bus_router.allocate(
                    self._bus,
                    self._keys,
                    call_sid,
                    merchant_id=merchant_id,
                    allocation_id=str(allocation_id),
                    lease_ttl_s=self._config.lease_ttl_s,
                    wait=self._config.wait_rule if may_wait else bus_router.WaitRule(),
                    is_alone=is_alone,
                )
        except (BusUnavailable, TimeoutError):
            self._valkey.timed_out()
            return None
        self._valkey.answered()
        return None if isinstance(proposed, Stale) else proposed

    async def _decide(self, asked: AllocationRequest) -> allocations.Allocation | Unallocated:
        async with self._database.connection() as conn:
            return await allocations.allocate(conn, asked, await self._chain(conn, asked.merchant_id))

    async def _give_new(self, asked: AllocationRequest) -> allocations.Allocation | None:
        """In one commit with other new calls. None: the row is locked, take the full way."""
        try:
            return await self._new_calls.ask(asked)
        except ROW_HELD:
            return None

    async def _chain(self, conn: Any, merchant_id: str) -> tuple[str, ...]:
        now_s = time.monotonic()
        until_s, known = self._chains.get(merchant_id, (0.0, ()))
        if now_s < until_s:
            return known
        configs = await allocations.merchant_tiers(conn, [merchant_id]) if merchant_id else {}
        found = chain(merchant_id, configs.get(merchant_id, ""))
        if len(self._chains) > 10_000:
            self._chains.clear()
        self._chains[merchant_id] = (now_s + TIER_FRESH_S, found)
        return found

    async def _without_postgres(
        self,
        call_sid: str,
        merchant_id: str,
        allocation_id: UUID,
        attempt_id: UUID | None,
        proposed: Allocation | NoPod | QueuedForPod | None,
        *,
        may_wait: bool,
        turn: int,
    ) -> Allocated | NoneFree | PodWait | MustHangUp:
        """Valkey decides alone, also after a loss, when it has only pods with a heartbeat since; the note follows."""
        if proposed is None:
            found = await self._propose(
                call_sid, merchant_id, allocation_id, may_wait=may_wait, is_alone=True
            )
            if isinstance(found, CallOver):
                return MustHangUp()
            proposed = found
        match proposed:
            case Allocation():
                slot = Slot(proposed.pod, proposed.slot, proposed.incarnation, proposed.source_pool)
                self._notes.begun(Note(allocation_id, call_sid, attempt_id is not None, merchant_id, slot))
                metrics.ROUTER_ALLOCATIONS.labels("noted").inc()
                return self._proposed(call_sid, proposed, turn)
            case QueuedForPod():
                return PodWait(proposed.before, self._config.hold_poll_s)
            case NoPod():
                return self._none(merchant_id, proposed)
            case _:
                return NoneFree(is_known=False)

    async def _refused(
        self, decided: Unallocated, proposed: Allocation | NoPod | QueuedForPod | None
    ) -> NoneFree | PodWait | MustHangUp | GivenUp:
        """Postgres gave no pod. This request frees Valkey's proposal; if it is lost, the pool manager does so after
        5 s."""
        if isinstance(proposed, Allocation) and not proposed.was_existing:
            self._in_the_background(
                bus_router.free(self._bus, self._keys, [proposed.allocation_id], tombstone_s=0)
            )
        match decided.result:
            case "waits":
                metrics.ROUTER_ALLOCATIONS.labels("hold").inc()
                return PodWait(decided.waiting_before, self._config.hold_poll_s)
            case "none":
                return self._none("", proposed)
            case "given_up":
                return GivenUp()
            case reason:
                metrics.ROUTER_ALLOCATIONS.labels("ended").inc()
                return MustHangUp(reason)

    def _none(self, merchant_id: str, proposed: object) -> NoneFree:
        metrics.ROUTER_ALLOCATIONS.labels("none").inc()
        self._report(merchant_id, isinstance(proposed, NoPod) and proposed.is_misconfigured)
        return NoneFree()

    def _given(
        self,
        call_sid: str,
        merchant_id: str,
        decided: allocations.Allocation,
        proposed: Allocation | NoPod | QueuedForPod | None,
        turn: int,
    ) -> Allocated:
        metrics.ROUTER_ALLOCATIONS.labels("existing" if decided.is_existing else "allocated").inc()
        is_odd = isinstance(proposed, Allocation | NoPod) and proposed.is_misconfigured
        self._report(merchant_id, is_odd)
        if _slot(proposed) != decided.slot:
            self._tell(decided, call_sid)
        return self._allocated(call_sid, decided, turn)

    def _tell(self, decided: allocations.Allocation, call_sid: str) -> None:
        """Write Postgres' choice into Valkey where it had proposed another or none. The pool manager repairs a lost
        write."""
        slot = decided.slot
        begun = BegunCall(
            str(decided.id), call_sid, slot.pod, slot.no, slot.incarnation, decided.merchant_id,
            slot.source_pool, decided.turn,
        )  # fmt: skip
        if not self._valkey.is_open:
            self._in_the_background(bus_router.begin(self._bus, self._keys, begun))

    def _in_the_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(_bounded(work), name="tell valkey")
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _begin(self, attempt_id: UUID, call_sid: str) -> allocations.Allocation | None:
        async with self._database.connection() as conn:
            return await allocations.begin(conn, attempt_id, call_sid)

    async def _is_resumed(self, call_sid: str, turn: int) -> bool:
        async with self._database.connection() as conn:
            return await resumptions.is_resumed(conn, call_sid, turn)

    async def _ask_postgres(self, question: Coroutine[Any, Any, T], within_s: float | None) -> T:
        """While the server hangs, the driver does not return from a cancelled query, so the caller stops waiting for
        it. `within_s` None: a group commit, which has its own limit."""
        if self._postgres.is_open:
            question.close()
            raise EngineSilent("Postgres was silent lately")
        try:
            answer = await (question if within_s is None else in_time(max(within_s, 0.05), question))
        except Exception as error:
            if not (isinstance(error, UNAVAILABLE) or is_of_database(error)):
                raise
            # Another transaction locks this one row: that is no fault of the server.
            if not isinstance(error, ROW_HELD):
                self._postgres.timed_out()
            raise EngineSilent(str(error)) from error
        self._postgres.answered()
        return answer

    def _allocated(self, call_sid: str, decided: allocations.Allocation, turn: int = 0) -> Allocated:
        slot, turn = decided.slot, max(decided.turn, turn)
        return Allocated(
            pod=slot.pod,
            ws_url=stream_url(decided.base_url or self._config.voice_agent_base_url, slot.pod, call_sid),
            token=self._stream_keys.sign(slot.pod, call_sid, decided.id.hex, turn),
            source_pool=slot.source_pool,
            allocated_at=datetime.now(UTC),
            was_existing=decided.is_existing,
            turn=turn,
        )

    def _proposed(self, call_sid: str, proposed: Allocation, turn: int) -> Allocated:
        base_url = proposed.base_url or self._config.voice_agent_base_url
        return Allocated(
            pod=proposed.pod,
            ws_url=stream_url(base_url, proposed.pod, call_sid),
            token=self._stream_keys.sign(proposed.pod, call_sid, UUID(proposed.allocation_id).hex, turn),
            source_pool=proposed.source_pool,
            allocated_at=datetime.fromtimestamp(proposed.allocated_at_s, UTC),
            was_existing=proposed.was_existing,
            turn=turn,
        )

    def _report(self, merchant_id: str, is_misconfigured: bool) -> None:
        if is_misconfigured:
            metrics.ROUTER_UNKNOWN_TIERS.inc()
            log.warning("router.unknown_tier", merchant_id=merchant_id)


async def _bounded(work: Coroutine[Any, Any, None]) -> None:
    try:
        async with asyncio.timeout(2.0):
            await work
    except (BusUnavailable, TimeoutError) as error:
        log.info("router.valkey_not_updated", reason=str(error))


def _slot(proposed: object) -> Slot | None:
    if not isinstance(proposed, Allocation):
        return None
    return Slot(proposed.pod, proposed.slot, proposed.incarnation, proposed.source_pool)
