"""Acts on what `continuity.py` judges: lets the view of the controls open, or turns the kill switch on first."""

from trunkline.bus import witness
from trunkline.bus.connection import Bus
from trunkline.clock import Clock
from trunkline.control.continuity import WITNESS_WAIT_S, Guard, Mark, Steady, Unnamed, WentBack, judge
from trunkline.control.raising import raise_alarm
from trunkline.errors import BusUnavailable
from trunkline.loops.leader import LeaderLoop, Leadership
from trunkline.store import audit, continuity, controls
from trunkline.store.controls import Level, NewStop, Poll, Scope
from trunkline.store.database import Database
from trunkline.store.tenants import PLATFORM
from trunkline.telemetry import get_logger

log = get_logger(__name__)

ACTOR = "system:continuity"
RAMP_S = 60


class Guardian:
    """One per process. It is a witness itself: it remembers the furthest that it has seen."""

    def __init__(self, database: Database, bus: Bus, clock: Clock, guard: Guard = "strict"):
        self._database = database
        self._bus = bus
        self._clock = clock
        self._guard: Guard = guard
        self._own: Mark | None = None
        self._started_at_s = clock.monotonic_s()

    @property
    def mark(self) -> Mark | None:
        """How far the database is known to have come; None until it was admitted."""
        return self._own

    async def look(self) -> Poll | None:
        """Postgres' answer, if it is the database that it should be; None: look again.

        Memories are taken before Postgres is asked. The other way round, a beat in between would look like a loss.
        """
        own, said = self._own, None
        if own is None:
            try:
                said = await self._ask_witness()
            except BusUnavailable:
                if self._clock.monotonic_s() - self._started_at_s < WITNESS_WAIT_S:
                    return None
                log.warning("continuity.no_witness")
        async with self._database.connection() as conn:
            poll = await controls.poll(conn)
        match judge(poll, own, said, self._guard):
            case Steady(mark=mark):
                self.remember(mark)
                return poll
            case Unnamed():
                async with self._database.connection() as conn:
                    await continuity.begin(conn)
            case WentBack() as found:
                await self._trip(found)
        return None

    def remember(self, mark: Mark) -> None:
        """The furthest that this process has seen, or has moved the database to itself."""
        if self._own is None or self._own.beat < mark.beat:
            self._own = mark

    async def _ask_witness(self) -> Mark | None:
        said = await witness.recall(self._bus)
        return Mark(*said) if said else None

    async def _trip(self, found: WentBack) -> None:
        """Once for all processes: the first to move the number on turns the switch."""
        installation = found.found.installation
        async with self._database.transaction() as tx:
            beat = await continuity.leap(tx, installation, found.found.beat, found.beyond)
            if beat is None:
                return
            await controls.stop(
                tx, NewStop(Scope.KILL_SWITCH, "", Level.PLATFORM, found.reason, ACTOR, PLATFORM, RAMP_S)
            )
            await audit.record(
                tx,
                actor=ACTOR,
                action="control.stopped",
                subject=Scope.KILL_SWITCH,
                tenant=PLATFORM,
                reason=found.reason,
                details={"beat": found.found.beat, "remembered": found.beyond},
            )
            await raise_alarm(tx, "store_restored", detail={"reason": found.reason})
        log.error("continuity.broken", reason=found.reason, beat=found.found.beat, remembered=found.beyond)
        self._own = Mark(installation, beat)


class Heartbeat(LeaderLoop):
    """Moves the number on, and tells Valkey. Only from a place that this process has admitted."""

    name = "heartbeat"

    def __init__(
        self,
        leadership: Leadership,
        database: Database,
        bus: Bus,
        guardian: Guardian,
        interval_s: float = 1.0,
    ):
        super().__init__(leadership, interval_s)
        self._database = database
        self._bus = bus
        self._guardian = guardian

    async def lead_once(self) -> int:
        mark = self._guardian.mark
        if mark is None:
            return 0
        async with self._database.connection() as conn:
            beat = await continuity.advance(conn, mark.installation, mark.beat)
        if beat is None:
            return 0  # another leader was faster, or the database went back: the next refresh tells which
        self._guardian.remember(Mark(mark.installation, beat))
        await witness.remember(self._bus, mark.installation, beat)
        return 1
