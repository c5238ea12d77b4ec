"""The dialer: asks for grants, commits the intent, hands each call to the sender.

    match ─► intent ─► send ─► results
      ▲         │ refused: given back, and what was refused is blocked
      └── bell, next moment, 1 s

Without Valkey the grants come from Postgres alone, at a reduced, stated rate, through the same intent. Nothing is sent
that is not committed. A dialer that dies between two steps leaves a trace that a loop finds: a holder without an
attempt, or an attempt still `dialing`.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from trunkline.bus import channels, doorbell, epoch, schedule
from trunkline.bus.connection import Bus
from trunkline.clock import Clock
from trunkline.crashpoint import crash_point
from trunkline.dispatch import returns
from trunkline.dispatch.intent import Intents, disown, intend
from trunkline.dispatch.intent_batch import Rules
from trunkline.dispatch.offset import ClockOffset
from trunkline.dispatch.refusals import Refusal
from trunkline.dispatch.sender import Asked, Sender
from trunkline.errors import BusUnavailable, MemoryLost
from trunkline.loops.base import Loop
from trunkline.model import Entry, Grant, new_id
from trunkline.store import schedule as store_schedule
from trunkline.store.database import UNAVAILABLE, Database
from trunkline.store.dispatch import NewAttempt
from trunkline.telemetry import get_logger, metrics, span

log = get_logger(__name__)

# Gives leads whose calling window closed before their turn (id and version) a new due time, in Postgres first.
NextOpening = Callable[[Sequence[tuple[UUID, int]]], Awaitable[Sequence[Entry]]]


@dataclass(frozen=True, slots=True)
class DialerLimits:
    # A match costs 0.1 ms for one grant and under 1 ms for sixteen, and blocks Valkey meanwhile.
    batch_max: int = 16
    in_flight_max: int = 64
    wait_max_s: float = 1.0
    # Without Valkey every grant costs Postgres a scan, so there are fewer.
    fallback_starts_per_s: int = 5


class Dialer(Loop):
    name = "dialer"

    def __init__(
        self,
        database: Database,
        bus: Bus,
        clock: Clock,
        sender: Sender,
        identity: str,
        rules: Rules,
        next_opening: NextOpening,
        limits: DialerLimits,
    ):
        super().__init__(limits.wait_max_s)
        self._database = database
        self._bus = bus
        self._clock = clock
        self._sender = sender
        self._identity = identity
        self._rules = rules
        self._next_opening = next_opening
        self._limits = limits
        self._offset = ClockOffset(database, bus)
        self._next_in_s: float | None = None
        # Attempts whose COMMIT was not answered, until they are written as not sent.
        self._lost: list[NewAttempt] = []

    async def run_once(self) -> int:
        """One round; the number of calls that were sent on their way."""
        await self._disown_lost()
        grants = await self._grants()
        if not grants:
            return 0
        crash_point("dialer.after_match")
        asked = Asked.now(self._clock)
        with span("dispatch.intent") as step:
            intents = await intend(self._database, grants, self._identity, self._rules)
            step.add(granted=len(grants), committed=len(intents.committed))
        crash_point("dialer.after_intent")
        for intent in intents.committed:
            self._sender.send_soon(intent, asked)
        await self._follow_up(intents)
        return len(intents.committed)

    async def wait(self) -> None:
        """Until the bell rings or the match said that something happens: a lead due, a flow or a number awake."""
        timeout_s = self.interval_s if self._next_in_s is None else min(self.interval_s, self._next_in_s)
        if timeout_s <= 0:
            return
        try:
            await doorbell.wait(self._bus, timeout_s)
        except BusUnavailable:
            await self.pause(timeout_s)

    async def drain(self) -> None:
        await self._sender.drain()

    async def _grants(self) -> Sequence[Grant]:
        while self._sender.in_flight >= self._limits.in_flight_max:
            await self._sender.one_is_done()
        room = min(self._limits.batch_max, self._limits.in_flight_max - self._sender.in_flight)
        try:
            return await self._match(room)
        except MemoryLost:
            raise  # it is being rebuilt: a moment's patience is better than a slower way
        except BusUnavailable as error:
            return await self._fallback(room, error)

    async def _match(self, room: int) -> Sequence[Grant]:
        await epoch.ensure(self._bus)
        ids = [new_id() for _ in range(room)]
        match = await schedule.match(self._bus, ids, clock_offset_ms=await self._offset.ms())
        self._next_in_s = match.next_in_s
        if match.closed:
            await schedule.add(self._bus, await self._next_opening(match.closed))
        return match.grants

    async def _fallback(self, room: int, error: BusUnavailable) -> Sequence[Grant]:
        """Postgres alone pairs leads with channels, once a second."""
        self._next_in_s = 1.0
        async with self._database.connection() as conn:
            grants = await store_schedule.fallback_grants(conn, min(room, self._limits.fallback_starts_per_s))
        metrics.FALLBACK_DIALS.inc(len(grants))
        log.warning("dialer.without_valkey", grants=len(grants), reason=str(error))
        return grants

    async def _follow_up(self, intents: Intents) -> None:
        self._lost += intents.lost
        await self._disown_lost()
        if intents.refused:
            await self._give_back(intents.refused)

    async def _disown_lost(self) -> None:
        """Never send what may or may not be committed: write it as not sent, and let its lead be due again."""
        if not self._lost:
            return
        try:
            due_again = await disown(self._database, self._lost, self._identity)
        except UNAVAILABLE as error:
            log.warning("dialer.disown_failed", attempts=len(self._lost), error=str(error))
            return
        freed = [attempt.grant.attempt_id for attempt in self._lost]
        self._lost = []
        await self._tell(due_again, freed)

    async def _give_back(self, refused: Sequence[Refusal]) -> None:
        """Tell Valkey what Postgres refused and why, so that the same is not granted again at once."""
        offset_ms = await self._offset.ms()
        now_ms = round(self._clock.now().timestamp() * 1000)
        try:
            await schedule.give_back(
                self._bus, returns.give_backs(refused, now_ms), clock_offset_ms=offset_ms
            )
            await channels.hold(self._bus, returns.true_holders(refused))
            await schedule.add(self._bus, returns.moved_entries(refused), clock_offset_ms=offset_ms)
        except BusUnavailable as error:
            log.warning("dialer.refusals_untold", count=len(refused), reason=str(error))

    async def _tell(self, due_again: Sequence[Entry], freed: Sequence[UUID]) -> None:
        try:
            await channels.release(self._bus, freed)
            await schedule.add(self._bus, due_again)
        except BusUnavailable as error:
            log.warning("dialer.disowned_untold", count=len(freed), reason=str(error))
