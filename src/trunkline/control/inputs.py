"""From what the platform can see of itself to one value per alarm and subject. Reading is here, judging is not."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from trunkline.control.evaluation import lost_share, share
from trunkline.store import agents, alarms, presence
from trunkline.store.agents import AgentRoom, SlotRule
from trunkline.store.alarms import Overdue, Seen
from trunkline.store.database import Connection
from trunkline.store.presence import Key, Measured
from trunkline.telephony.carriers import STREAMLESS

ALIVE_WITHIN_S = 15.0
MINUTES = 15
# Recorded beside the alarms: how many processes of a role there were, to know later how many are missing.
ALIVE = "processes_alive"


@dataclass(frozen=True, slots=True)
class Readings:
    """Everything that measured alarms are made of, at one moment."""

    overdue: Overdue = field(default_factory=Overdue)
    was_placed: bool = True
    lateness_p99_s: float = 0.0
    unknown_attempts: Mapping[str, float] = field(default_factory=dict)
    dead_jobs: Mapping[str, float] = field(default_factory=dict)
    measured: Sequence[Measured] = ()
    alive: Mapping[str, int] = field(default_factory=dict)
    valkey_answers: bool = True
    # Looked at only while leads wait that need one. None: none does.
    agents: AgentRoom | None = None


async def read(conn: Connection, *, valkey_answers: bool, slots: SlotRule | None = None) -> Readings:
    """`slots`: how agents of ours are counted. None: they are all elsewhere."""
    was_placed = await alarms.was_placed(conn)
    # It looks at every flow, and matters only while nothing is placed.
    overdue = Overdue() if was_placed else await alarms.overdue(conn, STREAMLESS)
    return Readings(
        overdue=overdue,
        agents=await agents.room(conn, slots) if slots is not None and overdue.needing_agents else None,
        was_placed=was_placed,
        lateness_p99_s=await alarms.lateness_p99_s(conn),
        unknown_attempts=await alarms.unknown_attempts(conn),
        dead_jobs=await alarms.dead_jobs(conn),
        measured=await presence.measured(conn, MINUTES),
        alive=await presence.alive(conn, ALIVE_WITHIN_S),
        valkey_answers=valkey_answers,
    )


def values(now: Readings, before: Iterable[Seen]) -> dict[Key, float]:
    """One value for each alarm and subject that there is something to say of."""
    agentless = now.overdue.needing_agents if now.agents is not None and not now.agents.is_free else 0.0
    are_there = now.agents is not None and now.agents.able > 0
    found: dict[Key, float] = {
        ("dispatch_halted", ""): 0.0 if now.was_placed else now.overdue.leads - agentless,
        ("no_agents", ""): 0.0 if are_there else agentless,
        ("agents_busy", ""): agentless if are_there else 0.0,
        ("lateness_high", ""): now.lateness_p99_s,
        ("valkey_unreachable", ""): float(not now.valkey_answers),
        ("schedule_failures", ""): share(
            _total(now.measured, "schedule_failed", 5), _total(now.measured, "schedule_tried", 5)
        ),
        ("channel_drift", ""): _latest(now.measured, "channel_drift").get("", 0.0),
    }
    found |= {("attempt_unknown", subject): count for subject, count in now.unknown_attempts.items()}
    found |= {("dead_jobs", subject): count for subject, count in now.dead_jobs.items()}
    found |= {("dead_mailbox", kind): n for kind, n in _latest(now.measured, "dead_appends").items()}
    found |= {("reconciler_fixes", name): n for name, n in _latest(now.measured, "reconciler_fixes").items()}
    for alarm, part, whole in (
        ("unknown_rate", "unknown", "placed"),
        ("agent_unknown_rate", "agent_unknown", "answered"),
    ):
        found |= {(alarm, carrier): rate for carrier, rate in _rates(now.measured, part, whole).items()}
    return found | _workers(now.alive, before)


def _workers(alive: Mapping[str, int], before: Iterable[Seen]) -> dict[Key, float]:
    lately: dict[str, list[float]] = defaultdict(list)
    for seen in before:
        if seen.name == ALIVE and seen.age_s <= 600:
            lately[seen.subject].append(seen.value)
    found: dict[Key, float] = {}
    for role, count in alive.items():
        found[ALIVE, role] = count
        found["workers_down", role] = lost_share(count, lately[role])
    return found


def _total(measured: Iterable[Measured], name: str, minutes: int) -> float:
    return sum(each.value for each in measured if each.name == name and each.minutes_ago < minutes)


def _latest(measured: Iterable[Measured], name: str) -> dict[str, float]:
    """The greater of this minute and the one before: a minute that has just begun has counted little."""
    found: dict[str, float] = {}
    for each in measured:
        if each.name == name and each.minutes_ago <= 1:
            found[each.subject] = max(found.get(each.subject, 0.0), each.value)
    return found


def _rates(measured: Sequence[Measured], part: str, whole: str) -> dict[str, float]:
    """By carrier: which part of the calls of the last minutes it was."""
    carriers = {each.subject for each in measured if each.name == whole}
    return {
        carrier: share(
            _total((each for each in measured if each.subject == carrier), part, MINUTES),
            _total((each for each in measured if each.subject == carrier), whole, MINUTES),
        )
        for carrier in carriers
    }
