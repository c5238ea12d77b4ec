"""The leader evaluates every measured alarm and stores its samples. `control/notifier.py` sends the notifications."""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from trunkline.bus.connection import Bus
from trunkline.bus.server_time import server_time_s
from trunkline.control import inputs
from trunkline.control.alarms import DEFINITIONS, Measured
from trunkline.control.evaluation import Cleared, History, Raised, Sample, evaluate
from trunkline.control.inputs import Waits
from trunkline.control.raising import clear_alarm, raise_alarm
from trunkline.control.waits import Includes, everybody
from trunkline.errors import BusUnavailable
from trunkline.loops.leader import LeaderLoop, Leadership
from trunkline.store import alarms, presence, schedule
from trunkline.store.agents import SlotRule
from trunkline.store.alarms import Alarm, Seen
from trunkline.store.database import Connection, Database
from trunkline.store.presence import Key
from trunkline.telemetry import metrics

# The longest history that an alarm needs is 15 minutes.
KEEP_S = 1200.0
WALK_SHARE = 0.05


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
        await self._count_processes()
        return done

    async def run_as_follower(self) -> int:
        await self._count_processes()
        return 0

    async def _count_processes(self) -> None:
        """Every process sets this gauge, leader or not: a scrape may hit any of them."""
        async with self._database.connection() as conn:
            metrics.set_exactly(metrics.PROCESSES, await presence.alive(conn, inputs.ALIVE_WITHIN_S))

    async def _evaluate(self) -> int:
        valkey_answers = await self._valkey_answers()
        async with self._database.connection() as conn:
            before = await alarms.samples(conn, KEEP_S)
            readings = await inputs.read(conn, await self._read_waits(conn), valkey_answers=valkey_answers)
            now = inputs.values(readings)
            details = inputs.details(readings)
            opened = _known(await alarms.list_open(conn))
            now = _zeros(opened) | now
            now_s = await schedule.clock_s(conn)
        async with self._database.transaction() as tx:
            if not await self.leadership.guard(tx):
                return 0
            await alarms.add_samples(tx, now)
            await alarms.forget_samples(tx, KEEP_S)
            await presence.forget_old(tx)
            await alarms.give_up_notifications(tx)
            verdicts = _verdicts(_histories(before, now, opened, now_s))
            for (name, subject), verdict in verdicts.items():
                await _act(tx, name, subject, verdict, details.get((name, subject), {}))
        return len(verdicts)

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
            await server_time_s(self._bus)
        except BusUnavailable:
            return False
        return True


def _known(opened: Iterable[Alarm]) -> dict[Key, Alarm]:
    """Another version of the code may have raised alarms that this one does not define, and must not evaluate."""
    return {(alarm.name, alarm.subject): alarm for alarm in opened if alarm.name in DEFINITIONS}


def _zeros(opened: Mapping[Key, Alarm]) -> dict[Key, float]:
    """An open alarm whose subject is gone (a role, a type of job) has the value 0."""
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
    verdicts = {key: evaluate(DEFINITIONS[key[0]], history) for key, history in histories.items()}
    return {key: verdict for key, verdict in verdicts.items() if verdict is not None}


async def _act(
    tx: Connection, name: str, subject: str, verdict: Raised | Cleared, detail: Mapping[str, Any]
) -> None:
    match verdict:
        case Raised(value=value):
            await raise_alarm(tx, name, subject, {"value": round(value, 4), **detail})
        case Cleared():
            await clear_alarm(tx, name, subject)
