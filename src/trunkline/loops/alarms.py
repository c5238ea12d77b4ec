"""Judges every alarm, remembers what it was judged by, and tells the outside.

The leader judges. Every process with this loop shows the gauges, so that one that watches them need not know who leads.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping

from trunkline.bus.connection import Bus
from trunkline.bus.probe import server_time_s
from trunkline.clock import Clock
from trunkline.control import inputs
from trunkline.control.alarms import DEFINITIONS, Measured
from trunkline.control.announcements import Announcement, announcements
from trunkline.control.controls import STALE_AFTER_S
from trunkline.control.evaluation import Cleared, History, Raised, Sample, evaluate
from trunkline.control.raising import clear_alarm, raise_alarm
from trunkline.errors import BusUnavailable
from trunkline.loops.leader import LeaderLoop, Leadership
from trunkline.store import alarms, presence, schedule
from trunkline.store.agents import SlotRule
from trunkline.store.alarms import Alarm, Seen
from trunkline.store.database import UNAVAILABLE, Connection, Database
from trunkline.store.presence import Key
from trunkline.telemetry import metrics

# The longest history that an alarm looks at is ten minutes.
KEEP_S = 900.0
TELL_MAX = 100

Announce = Callable[[Connection, Announcement], Awaitable[object]]


class AlarmLoop(LeaderLoop):
    name = "alarms"

    def __init__(
        self,
        leadership: Leadership,
        database: Database,
        bus: Bus,
        clock: Clock,
        announce: Announce | None = None,
        interval_s: float = 5.0,
        slots: SlotRule | None = None,
    ):
        """`announce` sends the word, in the transaction that marks it as told. None: there is nobody to tell. `slots`:
        how agents of ours are counted. None: they are all elsewhere."""
        super().__init__(leadership, interval_s)
        self._database = database
        self._bus = bus
        self._clock = clock
        self._announce = announce
        self._slots = slots
        self._away_since_s: float | None = None

    async def run_once(self) -> int:
        """How many alarms were raised, cleared or told."""
        try:
            done = await super().run_once()
            async with self._database.connection() as conn:
                _show(await alarms.list_open(conn))
                metrics.set_exactly(metrics.PROCESSES, await presence.alive(conn, inputs.ALIVE_WITHIN_S))
        except UNAVAILABLE:
            if self._away_since_s is None:
                self._away_since_s = self._clock.monotonic_s()
            raise
        self._away_since_s = None
        return done

    async def lead_once(self) -> int:
        await self._record_outage()
        changed = await self._judge()
        return changed + await self._tell()

    async def _judge(self) -> int:
        valkey_answers = await self._valkey_answers()
        async with self._database.connection() as conn:
            before = await alarms.samples(conn, KEEP_S)
            readings = await inputs.read(conn, valkey_answers=valkey_answers, slots=self._slots)
            now = inputs.values(readings, before)
            opened = _known(await alarms.list_open(conn))
            now = _nothing_to_see(opened) | now
            now_s = await schedule.clock_s(conn)
        async with self._database.transaction() as tx:
            if not await self.leadership.guard(tx):
                return 0
            await alarms.add_samples(tx, now)
            await alarms.forget_samples(tx, KEEP_S)
            await presence.forget_old(tx)
            verdicts = _verdicts(_histories(before, now, opened, now_s))
            for (name, subject), verdict in verdicts.items():
                await _act(tx, name, subject, verdict)
        return len(verdicts)

    async def _tell(self) -> int:
        async with self._database.transaction() as tx:
            untold = await alarms.untold(tx, TELL_MAX)
            if not untold:
                return 0
            for announcement in announcements(untold):
                if self._announce is not None:
                    await self._announce(tx, announcement)
            await alarms.told(tx, [alarm.id for alarm in untold])
        return len(untold)

    async def _valkey_answers(self) -> bool:
        try:
            await server_time_s(self._bus)
        except BusUnavailable:
            return False
        return True

    async def _record_outage(self) -> None:
        """Nobody could write that Postgres was away while it was."""
        if self._away_since_s is None:
            return
        lasted_s = self._clock.monotonic_s() - self._away_since_s
        if lasted_s <= STALE_AFTER_S:
            return
        definition = DEFINITIONS["postgres_unreachable"]
        async with self._database.transaction() as tx:
            await alarms.record_past(
                tx,
                definition.name,
                "",
                severity=definition.severity,
                detail={"lasted_s": round(lasted_s, 1)},
                lasted_s=lasted_s,
            )


def _known(opened: Iterable[Alarm]) -> dict[Key, Alarm]:
    """Another version of the code may have raised alarms that this one does not know, and must not judge."""
    return {(alarm.name, alarm.subject): alarm for alarm in opened if alarm.name in DEFINITIONS}


def _nothing_to_see(opened: Mapping[Key, Alarm]) -> dict[Key, float]:
    """An alarm whose subject is gone (a role, a type of job) has a value too: none of it."""
    return {key: 0.0 for key in opened if isinstance(DEFINITIONS[key[0]].rule, Measured)}


def _histories(
    before: Iterable[Seen], now: Mapping[Key, float], opened: Mapping[Key, Alarm], now_s: float
) -> dict[Key, History]:
    samples: dict[Key, list[Sample]] = defaultdict(list)
    for seen in before:
        samples[seen.name, seen.subject].append(Sample(seen.age_s, seen.value))
    for key, value in now.items():
        samples[key].append(Sample(0.0, value))
    return {
        key: History(
            samples.get(key, ()),
            is_open=key in opened,
            seen_s_ago=now_s - opened[key].seen_at.timestamp() if key in opened else 0.0,
        )
        for key in {*now, *opened}
        if key[0] in DEFINITIONS
    }


def _verdicts(histories: Mapping[Key, History]) -> dict[Key, Raised | Cleared]:
    judged = {key: evaluate(DEFINITIONS[key[0]], history) for key, history in histories.items()}
    return {key: verdict for key, verdict in judged.items() if verdict is not None}


async def _act(tx: Connection, name: str, subject: str, verdict: Raised | Cleared) -> None:
    match verdict:
        case Raised(value=value):
            await raise_alarm(tx, name, subject, {"value": round(value, 4)})
        case Cleared():
            await clear_alarm(tx, name, subject)


def _show(opened: Iterable[Alarm]) -> None:
    """A series for every alarm there is: one that is absent could not be told from one that is not raised."""
    counts = dict.fromkeys(DEFINITIONS, 0.0)
    for alarm in opened:
        counts[alarm.name] = counts.get(alarm.name, 0.0) + 1
    metrics.set_exactly(metrics.ALARM, counts)
