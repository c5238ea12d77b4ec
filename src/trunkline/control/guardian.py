"""The guardian: checks in every process that Postgres was not restored to an earlier state, by the rules of
`continuity.py`. If it was, the guardian turns the kill switch on before this process believes its controls."""

from trunkline.bus import continuity_record
from trunkline.bus.connection import Bus
from trunkline.clock import Clock
from trunkline.control.continuity import (
    WITNESS_WAIT_S,
    ContinuityMark,
    Guard,
    Steady,
    Unnamed,
    WentBack,
    judge,
)
from trunkline.control.raising import raise_alarm
from trunkline.errors import BusUnavailable
from trunkline.loops.leader import Elected, LeaderLoop
from trunkline.store import audit, continuity, controls, restores
from trunkline.store.controls import Level, NewStop, Poll, Scope
from trunkline.store.database import Database
from trunkline.store.tenants import PLATFORM
from trunkline.telemetry import get_logger

log = get_logger(__name__)

ACTOR = "system:continuity"
RAMP_S = 60


class Guardian:
    """One per process. It is a witness itself: it stores the highest beat that it has seen."""

    def __init__(self, database: Database, bus: Bus, clock: Clock, guard: Guard = "strict"):
        self._database = database
        self._bus = bus
        self._clock = clock
        self._guard: Guard = guard
        self._own: ContinuityMark | None = None
        self._started_at_s = clock.monotonic_s()

    @property
    def mark(self) -> ContinuityMark | None:
        """The last accepted mark of the database; None before the first."""
        return self._own

    async def poll(self) -> Poll | None:
        """Postgres' reply, if its continuity holds; None: poll again.

        The witnesses are read before Postgres. The other way round, a beat in between would look like a loss.
        """
        own, witness = self._own, None
        if own is None:
            try:
                witness = await self._read_witness()
            except BusUnavailable:
                if self._clock.monotonic_s() - self._started_at_s < WITNESS_WAIT_S:
                    return None
                log.warning("continuity.no_witness")
        async with self._database.connection() as conn:
            poll = await controls.poll(conn)
            is_empty = own is None and await continuity.is_empty(conn)
        match judge(poll, own, witness, self._guard, is_empty=is_empty):
            case Steady(mark=mark):
                self.remember(mark)
                return poll
            case Unnamed():
                async with self._database.connection() as conn:
                    await continuity.begin(conn)
            case WentBack() as verdict:
                await self._trip(verdict)
        return None

    def remember(self, mark: ContinuityMark) -> None:
        """Store the highest beat that this process has seen or written."""
        if self._own is None or self._own.beat < mark.beat:
            self._own = mark

    async def _read_witness(self) -> ContinuityMark | None:
        record = await continuity_record.recall(self._bus)
        return ContinuityMark(*record) if record else None

    async def _trip(self, verdict: WentBack) -> None:
        """Once for all processes: the first that advances the beat turns the switch on."""
        installation = verdict.found.installation
        async with self._database.transaction() as tx:
            beat = await continuity.leap(tx, installation, verdict.found.beat, verdict.beyond)
            if beat is None:
                return
            await controls.stop(
                tx, NewStop(Scope.KILL_SWITCH, "", Level.PLATFORM, verdict.reason, ACTOR, PLATFORM, RAMP_S)
            )
            await restores.add(tx, verdict.backup_at, verdict.reason)
            await audit.record(
                tx,
                actor=ACTOR,
                action="control.stopped",
                subject=Scope.KILL_SWITCH,
                tenant=PLATFORM,
                reason=verdict.reason,
                details={"beat": verdict.found.beat, "remembered": verdict.beyond},
            )
            await raise_alarm(tx, "store_restored", detail={"reason": verdict.reason})
        log.error(
            "continuity.broken", reason=verdict.reason, beat=verdict.found.beat, remembered=verdict.beyond
        )
        self._own = ContinuityMark(installation, beat)


class Heartbeat(LeaderLoop):
    """Increments the beat, and writes it to Valkey. Only from a mark that this process has accepted."""

    name = "heartbeat"

    def __init__(
        self,
        leadership: Elected,
        database: Database,
        bus: Bus,
        guardian: Guardian,
        interval_s: float = 1.0,
    ):
        super().__init__(leadership, interval_s)
        self._database = database
        self._bus = bus
        self._guardian = guardian

    async def run_as_leader(self, term: int) -> int:
        mark = self._guardian.mark
        if mark is None:
            return 0
        async with self._database.connection() as conn:
            beat = await continuity.advance(conn, mark.installation, mark.beat)
        if beat is None:
            return 0  # another leader was faster, or the database went back: the next refresh detects which
        self._guardian.remember(ContinuityMark(mark.installation, beat))
        await continuity_record.remember(self._bus, mark.installation, beat)
        return 1
