"""Continuity of the database: detects that Postgres was restored to an earlier state.

Then calls may be live that it has no rows of: the guardian turns the kill switch on. `judge` is the pure rule.

The database has a name (`installation`) and a number (`beat`) that the leader increments every second. Every running
process and Valkey are witnesses: they store the last beat that they saw. If the database's beat is behind that of a
witness, it has lost commits, by a backup, a snapshot of a disk, or a promoted replica that lagged.

Without a witness (Valkey was emptied while no process ran) the database's own record counts: a last beat within five
minutes counts as a restart, an older one as a database that may come from a backup. So a copy of an installation that
is started elsewhere dials nothing. `RESTORE_GUARD=witness` trusts it instead. A database without leads is trusted too:
it has no lead that could be called twice.

Not detected are losses of less than one beat, a second; and, without a witness, those of less than five minutes.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from trunkline.bus import outages
from trunkline.bus.connection import Bus
from trunkline.clock import Clock
from trunkline.control.raising import raise_alarm
from trunkline.errors import BusUnavailable
from trunkline.loops.leader import Elected, LeaderLoop
from trunkline.store import audit, controls, restores
from trunkline.store.controls import Level, NewStop, Poll, Scope
from trunkline.store.database import Database
from trunkline.store.tenants import PLATFORM
from trunkline.telemetry import get_logger

log = get_logger(__name__)

ACTOR = "system:continuity"
RAMP_S = 60
UNWITNESSED_AFTER_S = 300.0
# How long a starting process waits for Valkey to answer before it goes on without this witness.
WITNESS_WAIT_S = 30.0

Guard = Literal["strict", "witness"]
_WHAT_TO_DO = "Run `trunkline restore-check` before dialling goes on."


@dataclass(frozen=True, slots=True)
class ContinuityMark:
    """A database and the last beat that a witness saw of it."""

    installation: UUID
    beat: int


@dataclass(frozen=True, slots=True)
class WentBack:
    """Its beat is behind that of a witness. `beyond` is the highest beat of any witness, `backup_at` the time of the
    database's own last beat."""

    found: ContinuityMark
    beyond: int
    backup_at: datetime
    reason: str


def judge(
    poll: Poll,
    own: ContinuityMark | None,
    witness: ContinuityMark | None,
    guard: Guard,
    *,
    is_empty: bool = False,
) -> ContinuityMark | WentBack | None:
    """`own` is the last mark of this process, `witness` that of Valkey, of whichever database it was. Returns the mark
    of a database that is at the beat of every witness, or beyond; None if no platform has ever started on it."""
    if poll.installation is None:
        return None
    current, beat_at = ContinuityMark(poll.installation, poll.beat), poll.beat_at
    if own is not None and own.installation != current.installation:
        reason = f"Postgres was replaced by another database while this process ran. {_WHAT_TO_DO}"
        return WentBack(current, current.beat, beat_at, reason)
    seen = [mark.beat for mark in (own, witness) if mark and mark.installation == current.installation]
    if seen and current.beat < max(seen):
        reason = (
            f"Postgres was restored to an earlier moment, {beat_at:%Y-%m-%d %H:%M:%S} UTC: about "
            f"{max(seen) - current.beat} s of commits are lost, and calls that were placed meanwhile are unknown. "
            f"{_WHAT_TO_DO}"
        )
        return WentBack(current, max(seen), beat_at, reason)
    silent_s = (poll.now - beat_at).total_seconds()
    if not seen and guard == "strict" and not is_empty and silent_s > UNWITNESSED_AFTER_S:
        reason = (
            f"Postgres was last used at {beat_at:%Y-%m-%d %H:%M:%S} UTC and no witness knows whether that was its last "
            f"moment: it may come from a backup, or be a copy. {_WHAT_TO_DO}"
        )
        return WentBack(current, current.beat, beat_at, reason)
    return current


class Guardian:
    """Checks the continuity in every process, before the process believes its controls. It is a witness itself: it
    stores the highest beat that it has seen."""

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
                record = await outages.recall(self._bus)
                witness = ContinuityMark(*record) if record else None
            except BusUnavailable:
                if self._clock.monotonic_s() - self._started_at_s < WITNESS_WAIT_S:
                    return None
                log.warning("continuity.no_witness")
        async with self._database.connection() as conn:
            poll = await controls.poll(conn)
            is_empty = own is None and await restores.is_empty(conn)
        match judge(poll, own, witness, self._guard, is_empty=is_empty):
            case ContinuityMark() as mark:
                self.remember(mark)
                return poll
            case None:
                async with self._database.connection() as conn:
                    await restores.name_installation(conn)
            case WentBack() as verdict:
                await self._trip(verdict)
        return None

    def remember(self, mark: ContinuityMark) -> None:
        """Store the highest beat that this process has seen or written."""
        if self._own is None or self._own.beat < mark.beat:
            self._own = mark

    async def _trip(self, verdict: WentBack) -> None:
        """Once for all processes: the first that advances the beat turns the switch on."""
        installation = verdict.found.installation
        async with self._database.transaction() as tx:
            beat = await restores.advance(tx, installation, verdict.found.beat, verdict.beyond)
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
        self, leadership: Elected, database: Database, bus: Bus, guardian: Guardian, interval_s: float = 1.0
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
            beat = await restores.advance(conn, mark.installation, mark.beat, mark.beat)
        if beat is None:
            return 0  # another leader was faster, or the database went back: the next refresh detects which
        self._guardian.remember(ContinuityMark(mark.installation, beat))
        await outages.remember(self._bus, mark.installation, beat)
        return 1
