"""The leader evaluates every measured alarm and stores its samples. `control/notifier.py` sends the notifications.

`evaluate` is the pure rule: from an alarm's samples to whether it is raised or cleared.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trunkline.bus.connection import Bus
from trunkline.control import inputs
from trunkline.control.alarms import DEFINITIONS, AlarmDefinition, Measured, Reported
from trunkline.control.inputs import Waits
from trunkline.control.raising import clear_alarm, raise_alarm
from trunkline.control.waits import Includes, everybody
from trunkline.errors import BusUnavailable
from trunkline.loops.leader import LeaderLoop, Leadership
from trunkline.store import alarms, presence, schedule
from trunkline.store.agents import SlotRule
from trunkline.store.alarms import Seen, StoredAlarm
from trunkline.store.database import Connection, Database
from trunkline.store.presence import Key
from trunkline.telemetry import metrics

# The longest history that an alarm needs is 15 minutes.
KEEP_S = 1200.0
WALK_SHARE = 0.05
# Samples further apart than this are not one history: no leader measured in between.
GAP_MAX_S = 60.0


@dataclass(frozen=True, slots=True)
class Sample:
    age_s: float
    value: float


@dataclass(frozen=True, slots=True)
class History:
    """The history of one alarm and subject: samples, oldest first, and for a reported alarm when it was last raised."""

    samples: Sequence[Sample] = ()
    is_open: bool = False
    seen_s_ago: float = 0.0


@dataclass(frozen=True, slots=True)
class Raised:
    value: float


@dataclass(frozen=True, slots=True)
class Cleared:
    pass


class AlarmLoop(LeaderLoop):
    name = "alarms"

    def __init__(
        self,
        leadership: Leadership,
        database: Database,
        bus: Bus,
        interval_s: float = 5.0,
        slots: SlotRule | None = None,
        includes: Includes = everybody,
        walk_share: float = WALK_SHARE,
    ):
        """`slots`: how slots of agents are counted. None: all agents are external. `includes`: whose leads this
        platform calls. `walk_share`: the largest share of the time that reading the waiting flows may take."""
        super().__init__(leadership, interval_s)
        self.leadership = leadership
        self._database = database
        self._bus = bus
        self._slots = slots
        self._includes = includes
        self._walk_share = walk_share
        self._waits = Waits()
        self._waits_again_at_s = float("-inf")

    async def run_as_leader(self, term: int) -> int:
        """Returns how many alarms were raised or cleared."""
        done = await self._evaluate()
        await self.run_as_follower()
        return done

    async def run_as_follower(self) -> int:
        """Every process sets this gauge, leader or not: a scrape may hit any of them."""
        async with self._database.connection() as conn:
            metrics.set_exactly(metrics.PROCESSES, await presence.alive(conn, inputs.ALIVE_WITHIN_S))
        return 0

    async def _evaluate(self) -> int:
        valkey_answers = await self._valkey_answers()
        async with self._database.connection() as conn:
            before = await alarms.samples(conn, KEEP_S)
            readings = await inputs.read(conn, await self._read_waits(conn), valkey_answers=valkey_answers)
            now = inputs.values(readings)
            details = inputs.details(readings)
            # Another version of the code may have raised alarms that this one does not define, and must not evaluate.
            opened = {
                (alarm.name, alarm.subject): alarm
                for alarm in await alarms.list_open(conn)
                if alarm.name in DEFINITIONS
            }
            # An open alarm whose subject is gone (a role, a type of job) has the value 0.
            now = {key: 0.0 for key in opened if isinstance(DEFINITIONS[key[0]].rule, Measured)} | now
            now_s = await schedule.clock_s(conn)
        async with self._database.transaction() as tx:
            if not await self.leadership.guard(tx):
                return 0
            await alarms.add_samples(tx, now)
            await alarms.forget_samples(tx, KEEP_S)
            await presence.forget_old(tx)
            await alarms.give_up_notifications(tx)
            acted = 0
            for (name, subject), history in _histories(before, now, opened, now_s).items():
                match evaluate(DEFINITIONS[name], history):
                    case Raised(value=value):
                        detail = {"value": round(value, 4), **details.get((name, subject), {})}
                        await raise_alarm(tx, name, subject, detail)
                    case Cleared():
                        await clear_alarm(tx, name, subject)
                    case None:
                        continue
                acted += 1
        return acted

    async def _read_waits(self, conn: Connection) -> Waits:
        """Reads every flow with overdue leads; with very many of them less often."""
        began_s = time.monotonic()
        if began_s >= self._waits_again_at_s:
            self._waits = await inputs.waits(conn, self._slots, self._includes)
            took_s = time.monotonic() - began_s
            self._waits_again_at_s = began_s + max(0.0, took_s / self._walk_share - self.interval_s)
        return self._waits

    async def _valkey_answers(self) -> bool:
        try:
            await self._bus.server_time_s()
        except BusUnavailable:
            return False
        return True


def _histories(
    before: Iterable[Seen], now: Mapping[Key, float], opened: Mapping[Key, StoredAlarm], now_s: float
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


def evaluate(definition: AlarmDefinition, history: History) -> Raised | Cleared | None:
    rule, is_open = definition.rule, history.is_open
    if isinstance(rule, Reported):
        is_quiet = rule.quiet_s is not None and history.seen_s_ago > rule.quiet_s
        return Cleared() if is_open and is_quiet else None
    # The latest unbroken run of samples that raise it, or clear it, newest first.
    run: list[Sample] = []
    for sample in reversed(history.samples):
        holds = sample.value <= rule.clear_at if is_open else sample.value > rule.above
        if not holds or sample.age_s - (run[-1].age_s if run else 0.0) > GAP_MAX_S:
            break
        run.append(sample)
    if not run or run[-1].age_s - run[0].age_s < (rule.clear_for_s if is_open else rule.for_s):
        return None
    return Cleared() if is_open else Raised(run[0].value)
