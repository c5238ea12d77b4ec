"""Connects answered calls with agents: gives them their pods, and takes these back.

`Connector` takes the agent reserved with the dial, the one that the call's URL names, or another:

reservation (Postgres) ─ silent ─► the pod of the answer URL ─ none, or too old ─► allocate, as for any other call
     │ none, or lost
     └───────────────────────────────────────────────────────────────────────► allocate

In `Allocator` Postgres decides, under its unique indexes; Valkey proposes, which saves the search for a free pod. While
one of them does not answer the other decides alone: Postgres picks, or Valkey's proposal counts and is written later.
Every wait is bounded, because a person waits on the phone: 150 ms for Valkey, 600 ms for both together.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar
from uuid import UUID

from trunkline.bus import router as bus_router
from trunkline.bus.router import NO_WAIT, RouterBus
from trunkline.clock import Clock
from trunkline.crashpoint import crash_point
from trunkline.errors import BusUnavailable
from trunkline.in_time import in_time
from trunkline.model import Slot, new_id
from trunkline.router.addresses import PodAddresses
from trunkline.router.allocation_notes import AllocationNotes
from trunkline.router.config import SILENCE_S, RouterConfig
from trunkline.router.tokens import CallKeys, StreamKeys
from trunkline.routing import Allocation, EndedAllocation, Unallocated, WhyUnallocated
from trunkline.schema.router import TURN_MAX
from trunkline.settings.tiers import chain
from trunkline.store import allocations, attempts
from trunkline.store.allocations import Address, AllocationRequest, LostAgent, Release
from trunkline.store.attempts import CallOwner
from trunkline.store.database import ROW_HELD, UNAVAILABLE, Connection, Database, is_of_database
from trunkline.store.group_commit import GroupCommit
from trunkline.telemetry import get_logger, metrics
from trunkline.telephony.carrier import ReservedAgent
from trunkline.value import Value, replace

log = get_logger(__name__)

T = TypeVar("T")

VALKEY_S = 0.15
ENGINES_S = 0.6
# For writes to Valkey that no caller waits for.
BACKGROUND_S = 2.0
# A merchant's tier changes rarely; a call that comes within this after a change may still go to the old one.
TIER_FRESH_S = 5.0
CHAINS_MAX = 10_000
# An engine's circuit breaker opens after this many timeouts in a row, for this long: otherwise every call would wait
# out the same timeout.
TIMEOUTS_MAX = 3
OPEN_S = 1.0
# What the agent library does by default. A call at a pod that sends heartbeats more rarely may be over before the pod
# has named it.
PROMPT_INTERVAL_S = 5.0


class EngineSilent(Exception):
    """An engine did not answer in time."""


class EngineBreaker:
    """The circuit breaker of Postgres or Valkey."""

    def __init__(self) -> None:
        self._timeouts = 0
        self._open_until_s = float("-inf")

    @property
    def is_open(self) -> bool:
        """True: send no request now."""
        return time.monotonic() < self._open_until_s

    def answered(self) -> None:
        self._timeouts = 0

    def timed_out(self) -> None:
        self._timeouts += 1
        if self._timeouts >= TIMEOUTS_MAX:
            self._open_until_s = time.monotonic() + OPEN_S


class Allocator:
    """`database` is a small pool of its own: an answered call does not wait behind a report."""

    def __init__(self, bus: RouterBus, config: RouterConfig, database: Database, notes: AllocationNotes):
        self._bus = bus
        self._config = config
        self._database = database
        self._notes = notes
        self._new_calls = GroupCommit(database, allocations.allocate_new, ENGINES_S)
        self._releases = GroupCommit(database, allocations.release, ENGINES_S)
        self._valkey = EngineBreaker()
        self._postgres = EngineBreaker()
        self._chains: dict[str, tuple[float, tuple[str, ...]]] = {}
        self._telling: set[asyncio.Task[None]] = set()

    async def begin(self, attempt_id: UUID, call: str) -> Allocation | None:
        """Begin a call whose slot was reserved with its dial. None: none is reserved. Raises `EngineSilent`."""
        kept = await self.ask(partial(allocations.begin, attempt_id=attempt_id, call=call))
        if kept is not None:
            self._tell_valkey(bus_router.begin(self._bus, kept))
            metrics.ROUTER_ALLOCATIONS.labels("kept").inc()
        return kept

    async def allocate(
        self,
        call: str,
        merchant_id: str = "",
        *,
        attempt_id: UUID | None = None,
        may_wait: bool = False,
        turn: int = 0,
    ) -> Allocation | Unallocated:
        """Idempotent: every request for one call gets the same pod and the same token. `turn`: how often its agent was
        lost, also where no row could be told so."""
        began_s = time.monotonic()
        allocation_id = attempt_id or new_id()
        wait_max_s = self._config.hold_max_s if may_wait else 0.0
        proposed = None
        # A call that lost its agent gets a pod that sent a heartbeat since, and Postgres picks it: Valkey would propose
        # one dead pod after the other, and the pod that lost the call may have reported to it that the call is over.
        if not turn:
            proposed = await self._propose(call, merchant_id, allocation_id, wait_max_s)
            if isinstance(proposed, Unallocated) and proposed.why == "ended":
                metrics.ROUTER_ALLOCATIONS.labels("ended").inc()
                return proposed
        crash_point("router.after_allocate")
        asked = AllocationRequest(
            allocation_id,
            call,
            attempt_id,
            merchant_id,
            proposed.slot if isinstance(proposed, Allocation) else None,
            wait_max_s,
            SILENCE_S,
            self._config.ended_ttl_s,
        )
        try:
            decided = await self._decide(asked, began_s + ENGINES_S)
        except EngineSilent:
            return await self._without_postgres(asked, proposed, turn)
        if isinstance(decided, Unallocated):
            if isinstance(proposed, Allocation) and not proposed.is_existing:
                self._tell_valkey(bus_router.free(self._bus, [proposed.id], tombstone_s=0))
            if decided.why != "given_up":
                label = {"busy": "none", "hold": "hold"}.get(decided.why, "ended")
                metrics.ROUTER_ALLOCATIONS.labels(label).inc()
            return decided
        metrics.ROUTER_ALLOCATIONS.labels("existing" if decided.is_existing else "allocated").inc()
        if decided.slot != asked.proposal:
            self._tell_valkey(bus_router.begin(self._bus, decided))
        return replace(decided, turn=turn) if turn > decided.turn else decided

    async def resume(self, call: str, attempt_id: UUID, turn: int) -> Allocation | Unallocated:
        """The call's stream of this turn ended while the call may go on: the carrier requests its next instructions.

        released row ─► the agent released the call, or it ended: hang up
        live row     ─► the agent was lost: the call goes into its next turn, and gets a pod as any other call does

        The pod that lost the call gets it again only after a heartbeat since then: it may be dead, and a person waits.
        While it still names the call it takes no other. Afterwards it is a pod like every other, and may get the same
        call again. Idempotent: every request about one stream gets the same pod."""
        try:
            resumption = await self.ask(
                partial(allocations.resume, attempt_id=attempt_id, call=call, turn=turn, turn_max=TURN_MAX)
            )
        except EngineSilent as error:
            log.error("router.resume_unwritten", call_id=call, reason=str(error))
            resumption = "exhausted" if turn >= TURN_MAX else LostAgent("", "")
        match resumption:
            case "over":
                metrics.ROUTER_RESUMPTIONS.labels("over").inc()
                return Unallocated("ended")
            case "exhausted":
                log.error("router.agents_lost", call_id=call, turn=turn)
                metrics.ROUTER_RESUMPTIONS.labels("exhausted").inc()
                return Unallocated("busy")
            case LostAgent(pod=pod, merchant_id=merchant_id):
                if pod is not None:
                    log.warning("router.agent_lost", call_id=call, pod=pod, turn=turn)
                    metrics.ROUTER_RESUMPTIONS.labels("lost").inc()
                    # Before Valkey proposes a pod, or it would propose the lost one.
                    await _within(VALKEY_S, bus_router.free(self._bus, [attempt_id], tombstone_s=0))
                return await self.allocate(
                    call, merchant_id, attempt_id=attempt_id, may_wait=True, turn=turn + 1
                )

    async def release(self, call: str, by_pod: str = "", turn: int | None = None) -> EndedAllocation | None:
        """Idempotent. `by_pod`: the pod, if the pod itself releases the call; `turn`: which of the call's streams it
        had: an older one ends nothing. None: the call has no pod: it was released already, or never had one."""
        row = None
        try:
            row = await self._ask_postgres(self._releases.ask(Release(call, new_id(), by_pod, turn)), None)
            if row is None and turn is not None:
                is_resumed = partial(allocations.is_resumed, call=call, turn=turn)
                if await self.ask(is_resumed):
                    # No release to Valkey either: its tombstone would keep the call from its next agent.
                    return None
        except EngineSilent as error:
            log.warning("router.release_not_written", call_id=call, reason=str(error))
            self._notes.over(call, by_pod, turn)
        crash_point("router.after_release")
        try:
            ended = await bus_router.release(
                self._bus, call, by_pod=by_pod, ended_ttl_s=self._config.ended_ttl_s
            )
        except BusUnavailable as error:
            if row is None:
                raise
            log.warning("router.release_not_projected", call_id=call, reason=str(error))
            ended = None
        return ended or (row if row is not None and row.pod is not None else None)

    def from_url(self, address: Address, call: str, attempt_id: UUID) -> Allocation:
        """The pod that the answer URL names, while Postgres is silent. The write follows; where the row says otherwise
        by then, the row wins."""
        # Only the row has the number of the slot.
        slot = Slot(address.pod, 0, address.incarnation)
        named = Allocation(attempt_id, call, slot, base_url=address.base_url)
        self._notes.begun(named, has_attempt=True, is_reserved=True)
        metrics.ROUTER_ALLOCATIONS.labels("url").inc()
        return named

    async def ask(self, query: Callable[[Connection], Awaitable[T]]) -> T:
        """A question to Postgres about an answered call. Raises `EngineSilent`."""
        return await self._ask_postgres(self._query(query), ENGINES_S)

    async def drain(self) -> None:
        """Wait until all background writes to Valkey are done."""
        if self._telling:
            await asyncio.wait(self._telling)

    async def _propose(
        self, call: str, merchant_id: str, allocation_id: UUID, wait_max_s: float, *, is_alone: bool = False
    ) -> Allocation | Unallocated | None:
        """None: Valkey does not answer, or its projection was lost and is not rebuilt yet."""
        if self._valkey.is_open:
            return None
        try:
            async with asyncio.timeout(VALKEY_S):
                proposed = await bus_router.allocate(
                    self._bus,
                    call,
                    merchant_id=merchant_id,
                    allocation_id=allocation_id,
                    lease_ttl_s=self._config.lease_ttl_s,
                    wait=self._config.wait_rule if wait_max_s else NO_WAIT,
                    is_alone=is_alone,
                )
        except (BusUnavailable, TimeoutError):
            self._valkey.timed_out()
            return None
        self._valkey.answered()
        if proposed is not None and proposed.is_misconfigured:
            metrics.ROUTER_UNKNOWN_TIERS.inc()
            log.warning("router.unknown_tier", merchant_id=merchant_id)
        return proposed

    async def _decide(self, asked: AllocationRequest, until_s: float) -> Allocation | Unallocated:
        """Postgres decides: a new call that has a proposal in one commit with others, unless its row is locked."""
        if asked.attempt_id is None and asked.proposal is not None:
            decided = await self._ask_postgres(self._give_new(asked), None)
            if decided is not None:
                return decided
        query = self._query(partial(self._allocate, asked=asked))
        return await self._ask_postgres(query, until_s - time.monotonic())

    async def _give_new(self, asked: AllocationRequest) -> Allocation | None:
        try:
            return await self._new_calls.ask(asked)
        except ROW_HELD:
            return None

    async def _allocate(self, conn: Connection, asked: AllocationRequest) -> Allocation | Unallocated:
        return await allocations.allocate(conn, asked, await self._chain(conn, asked.merchant_id))

    async def _chain(self, conn: Connection, merchant_id: str) -> tuple[str, ...]:
        now_s = time.monotonic()
        until_s, known = self._chains.get(merchant_id, (0.0, ()))
        if now_s < until_s:
            return known
        configs = await allocations.merchant_tiers(conn, [merchant_id]) if merchant_id else {}
        found = chain(merchant_id, configs.get(merchant_id, ""))
        if len(self._chains) > CHAINS_MAX:
            self._chains.clear()
        self._chains[merchant_id] = (now_s + TIER_FRESH_S, found)
        return found

    async def _without_postgres(
        self, asked: AllocationRequest, proposed: Allocation | Unallocated | None, turn: int
    ) -> Allocation | Unallocated:
        """Valkey decides alone, also after a loss, when it has only pods with a heartbeat since; the note follows."""
        if proposed is None:
            proposed = await self._propose(
                asked.call, asked.merchant_id, asked.id, asked.wait_max_s, is_alone=True
            )
        match proposed:
            case None:
                return Unallocated("unknown")
            case Allocation():
                noted = replace(proposed, id=asked.id)
                self._notes.begun(noted, has_attempt=asked.attempt_id is not None)
                metrics.ROUTER_ALLOCATIONS.labels("noted").inc()
                return replace(proposed, turn=turn) if turn else proposed
            case Unallocated(why="busy"):
                metrics.ROUTER_ALLOCATIONS.labels("none").inc()
        return proposed

    def _tell_valkey(self, work: Coroutine[Any, Any, None]) -> None:
        """Write Postgres' choice into Valkey, in the background, where it had proposed another or none. The pool
        manager repairs a lost write, and frees a proposal without a row after 5 s."""
        if self._valkey.is_open:
            work.close()
            return
        task = asyncio.create_task(_within(BACKGROUND_S, work), name="tell valkey")
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _query(self, query: Callable[[Connection], Awaitable[T]]) -> T:
        async with self._database.connection() as conn:
            return await query(conn)

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


async def _within(timeout_s: float, work: Coroutine[Any, Any, None]) -> None:
    """A write to Valkey that may be lost: Postgres decides, and the pool manager corrects Valkey by it."""
    try:
        async with asyncio.timeout(timeout_s):
            await work
    except (BusUnavailable, TimeoutError) as error:
        log.info("router.valkey_not_updated", reason=str(error))


class CallToConnect(Value, frozen=True):
    """A call that needs an agent. `is_dialled`: outbound, so a slot may be reserved for it; `agent` is the one that its
    URL names. `over_turn`: the turn of its stream that ended, if it had one."""

    call_id: str
    attempt_id: UUID
    is_dialled: bool
    merchant_id: str = ""
    agent: ReservedAgent | None = None
    over_turn: int | None = None


class Stream(Value, frozen=True):
    """Where the call's audio goes, and the parameters that the agent gets with it. `turn`: how many agents the call had
    before. `wants_status`: the carrier reports the fate of the stream."""

    url: str
    parameters: dict[str, str]
    turn: int = 0
    wants_status: bool = False


class Abandonment(Protocol):
    """What a call's policy grants a person who answered and gets no agent."""

    @property
    def message(self) -> str: ...

    @property
    def wait_max_s(self) -> float: ...


OnAbandonment = Callable[[Connection, CallOwner], Awaitable[Abandonment]]
# Reattaches a call whose attempt was written off. False: a newer attempt is live, or the lead has ended.
Reattach = Callable[[UUID, str], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Connector:
    allocator: Allocator
    addresses: PodAddresses
    stream_keys: StreamKeys
    call_keys: CallKeys
    database: Database
    clock: Clock
    on_abandonment: OnAbandonment
    reattach: Reattach
    # The agents of all calls are external.
    are_agents_elsewhere: bool = False

    async def find_stream(self, call: CallToConnect) -> Stream | Unallocated:
        """The stream of an answered call, or why it gets no agent now."""
        found = await self.connect(call)
        if isinstance(found, Unallocated) and found.why == "given_up":
            is_ours = await self.reattach(call.attempt_id, call.call_id)
            found = await self.connect(call) if is_ours else Unallocated("ended")
        if isinstance(found, Unallocated):
            return found
        # Three parameters, because Exotel takes no more: the stream's first frame names the lead.
        key = self.call_keys.sign(call.attempt_id, call.call_id, found.turn)
        parameters = {"attempt": str(call.attempt_id), "token": self.stream_keys.sign(found), "key": key}
        if found.turn:
            parameters["resumed"] = str(found.turn)
        # Whether the pod itself says soon enough that it has the call. Of one that this process does not know yet, or
        # that sends no heartbeats, only the carrier may say it. The outcome of a call that came in needs no witness.
        pod = self.addresses.by_pod.get(found.slot.pod)
        is_prompt = pod is not None and 0 < (pod.interval_s or 0) <= PROMPT_INTERVAL_S
        wants_status = call.is_dialled and not is_prompt
        return Stream(self.stream_keys.url(found), parameters, found.turn, wants_status)

    async def connect(self, call: CallToConnect) -> Allocation | Unallocated:
        if call.over_turn is not None:
            return await self.allocator.resume(call.call_id, call.attempt_id, call.over_turn)
        merchant_id, is_external = call.merchant_id, self.are_agents_elsewhere
        owner: CallOwner | None = None
        if call.is_dialled:
            try:
                if reserved := await self.allocator.begin(call.attempt_id, call.call_id):
                    return reserved
                owner = await self.allocator.ask(partial(attempts.owner, attempt_id=call.attempt_id))
                merchant_id = owner.merchant_id if owner else ""
                is_external = is_external or (owner is not None and owner.are_agents_elsewhere)
            except EngineSilent:
                if named := self._named_in_url(call):
                    return named
        found = await self.allocator.allocate(
            call.call_id, merchant_id, attempt_id=call.attempt_id, may_wait=not is_external
        )
        if isinstance(found, Unallocated) and found.why in ("busy", "hold", "unknown"):
            if is_external:
                return Unallocated("elsewhere")
            if owner is not None and owner.is_overdialled:
                # It was dialled without a reserved agent, and none is free now.
                async with self.database.connection() as conn:
                    granted = await self.on_abandonment(conn, owner)
                why: WhyUnallocated = "hold" if found.why == "hold" else "busy"
                return Unallocated(why, message=granted.message, wait_max_s=granted.wait_max_s)
        return found

    def _named_in_url(self, call: CallToConnect) -> Allocation | None:
        """None: no slot was reserved, or so long ago that another call may have it, or this process does not have the
        pod's address."""
        agent = call.agent
        if agent is None or agent.until_s < self.clock.now().timestamp():
            return None
        address = self.addresses.by_incarnation.get(agent.incarnation)
        return self.allocator.from_url(address, call.call_id, call.attempt_id) if address else None
