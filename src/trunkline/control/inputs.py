"""Measures one value per alarm and subject from Postgres. `alarm_loop.py` compares them with the thresholds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trunkline.control.waits import Cause, Includes, cause, everybody, leads_by, leads_by_cause
from trunkline.model import STREAMLESS
from trunkline.settings.tiers import chain
from trunkline.store import agents, alarms, allocations, job_admin, mailbox_admin, presence, waiting
from trunkline.store.agents import AgentCapacity, SlotRule
from trunkline.store.alarms import LongStop
from trunkline.store.database import Connection
from trunkline.store.presence import Key, Losses, MeasuredValue
from trunkline.store.waiting import FlowName, WaitingFlow

ALIVE_WITHIN_S = 15.0
MINUTES = 15


@dataclass(frozen=True, slots=True)
class Waits:
    """Flows with overdue leads and why each waits. `has_agents`: an agent of any tier takes calls."""

    causes: Mapping[WaitingFlow, Cause] = field(default_factory=dict)
    has_agents: bool = True


@dataclass(frozen=True, slots=True)
class Readings:
    """The inputs of all measured alarms, at one time."""

    waits: Waits = field(default_factory=Waits)
    was_placed: bool = True
    lateness_p99_s: float = 0.0
    unknown_attempts: Mapping[str, float] = field(default_factory=dict)
    dead_jobs: Mapping[str, float] = field(default_factory=dict)
    dead_mailboxes: Mapping[str, float] = field(default_factory=dict)
    waiting_mailboxes: Mapping[str, float] = field(default_factory=dict)
    events_set_aside: Mapping[str, float] = field(default_factory=dict)
    stops: Sequence[LongStop] = ()
    measured: Sequence[MeasuredValue] = ()
    processes: Mapping[str, Losses] = field(default_factory=dict)
    valkey_answers: bool = True


async def read(conn: Connection, waits: Waits, *, valkey_answers: bool) -> Readings:
    return Readings(
        waits=waits,
        was_placed=await alarms.was_placed(conn),
        lateness_p99_s=await alarms.lateness_p99_s(conn),
        unknown_attempts=await alarms.by_subject(conn, "unknown_attempts"),
        dead_jobs=await job_admin.dead_letters(conn),
        dead_mailboxes=await alarms.by_subject(conn, "dead_mailboxes"),
        waiting_mailboxes=await alarms.by_subject(conn, "waiting_mailboxes"),
        events_set_aside=await mailbox_admin.set_aside_lately(conn, within_s=60),
        stops=await alarms.long_stops(conn),
        measured=await presence.measured(conn, MINUTES),
        processes=await presence.losses(conn, ALIVE_WITHIN_S),
        valkey_answers=valkey_answers,
    )


async def waits(
    conn: Connection,
    slots: SlotRule | None = None,
    includes: Includes = everybody,
    *,
    overdue_s: float = waiting.OVERDUE_S,
    named: Sequence[FlowName] | None = None,
) -> Waits:
    """The waiting flows and their causes. `slots`: how slots of agents are counted. None: all agents are external.
    `named`: read only these flows."""
    flows = await waiting.flows(conn, STREAMLESS, overdue_s=overdue_s, named=named)
    capacities = await _capacities(conn, flows, slots) if slots is not None else {}
    causes = {flow: cause(flow, includes, capacities.get(flow.merchant_id)) for flow in flows}
    has_agents = slots is None or any(able for _, able in (await agents.by_tier(conn)).values())
    return Waits(causes, has_agents)


async def _capacities(
    conn: Connection, flows: Sequence[WaitingFlow], slots: SlotRule
) -> dict[str, AgentCapacity]:
    """By merchant. Most merchants reach the same few tiers, which are read once."""
    merchants = sorted({flow.merchant_id for flow in flows if flow.needs_agents})
    if not merchants:
        return {}
    configs = await allocations.merchant_tiers(conn, merchants)
    by_tiers: dict[tuple[str, ...], AgentCapacity] = {}
    by_merchant: dict[str, AgentCapacity] = {}
    for merchant in merchants:
        tiers = chain(merchant, configs.get(merchant, ""))
        if tiers not in by_tiers:
            by_tiers[tiers] = await agents.capacity(conn, slots, tiers)
        by_merchant[merchant] = by_tiers[tiers]
    return by_merchant


def values(now: Readings) -> dict[Key, float]:
    """One value for each alarm and subject."""
    causes, has_agents = now.waits.causes, now.waits.has_agents
    leads = leads_by_cause(causes)
    found: dict[Key, float] = {
        ("dispatch_halted", ""): 0.0 if now.was_placed else leads[Cause.NONE],
        ("no_agents", ""): 0.0 if has_agents else leads[Cause.NO_AGENTS],
        ("agents_busy", ""): 0.0 if now.was_placed else leads[Cause.AGENTS_BUSY],
        ("lateness_high", ""): now.lateness_p99_s,
        ("valkey_unreachable", ""): float(not now.valkey_answers),
        ("schedule_failures", ""): share(
            _total(now.measured, "schedule_failed", 5), _total(now.measured, "schedule_tried", 5)
        ),
        ("channel_drift", ""): _latest(now.measured, "channel_drift").get("", 0.0),
    }
    if has_agents:
        agentless = leads_by(causes, Cause.NO_AGENTS, lambda flow: flow.merchant_id)
        found |= _named("merchant_without_agents", agentless)
    found |= _named("leads_without_number", leads_by(causes, Cause.NO_NUMBER, lambda flow: flow.pool_id))
    found |= _named("attempt_unknown", now.unknown_attempts)
    found |= _named("dead_jobs", now.dead_jobs)
    found |= _named("dead_mailbox", now.dead_mailboxes)
    found |= _named("mailboxes_waiting", now.waiting_mailboxes)
    # Workers of an application have counters of their own: the tables show the events that they set aside.
    measured, seen = _latest(now.measured, "set_aside"), now.events_set_aside
    found |= _named(
        "events_set_aside",
        {kind: max(measured.get(kind, 0.0), seen.get(kind, 0.0)) for kind in {*measured, *seen}},
    )
    found |= _named("stop_lasting", {stop.subject: stop.hours for stop in now.stops})
    found |= _named("reconciler_fixes", _latest(now.measured, "reconciler_fixes"))
    found |= _named(
        "workers_down",
        {role: share(each.lost, each.alive + each.lost, 1.0) for role, each in now.processes.items()},
    )
    for alarm, part, whole in (
        ("unknown_rate", "unknown", "placed"),
        ("agent_unknown_rate", "agent_unknown", "answered"),
    ):
        found |= _named(alarm, _rates(now.measured, part, whole))
    return found


def details(now: Readings) -> dict[Key, Mapping[str, Any]]:
    """The details of an alarm beside its value."""
    found: dict[Key, Mapping[str, Any]] = {
        ("stop_lasting", stop.subject): {"reason": stop.reason, "changed_by": stop.changed_by}
        for stop in now.stops
    }
    for role, each in now.processes.items():
        found["workers_down", role] = {"alive": each.alive, "lost": each.lost}
    for flow, why in now.waits.causes.items():
        where = {"merchant_id": flow.merchant_id, "pool": flow.pool_id}
        if why is Cause.NO_NUMBER:
            found["leads_without_number", flow.pool_id] = where
        elif why is Cause.NO_AGENTS:
            found["merchant_without_agents", flow.merchant_id] = where
    return found


def _named(alarm: str, by_subject: Mapping[str, float]) -> dict[Key, float]:
    return {(alarm, subject): value for subject, value in by_subject.items()}


def _total(measured: Iterable[MeasuredValue], name: str, minutes: int) -> float:
    return sum(each.value for each in measured if each.name == name and each.minutes_ago < minutes)


def _latest(measured: Iterable[MeasuredValue], name: str) -> dict[str, float]:
    """The greater of this minute and the one before: a minute that has just begun has a low count."""
    by_subject: dict[str, float] = {}
    for each in measured:
        if each.name == name and each.minutes_ago <= 1:
            by_subject[each.subject] = max(by_subject.get(each.subject, 0.0), each.value)
    return by_subject


def _rates(measured: Sequence[MeasuredValue], part: str, whole: str) -> dict[str, float]:
    """By carrier: the share of the calls of the last minutes."""
    carriers = {each.subject for each in measured if each.name == whole}
    return {
        carrier: share(
            _total((each for each in measured if each.subject == carrier), part, MINUTES),
            _total((each for each in measured if each.subject == carrier), whole, MINUTES),
        )
        for carrier in carriers
    }


def share(part: float, whole: float, part_min: float = 3.0) -> float:
    """A rate that is 0 below `part_min` events: one failure among ten calls is no trend."""
    return part / whole if whole > 0 and part >= part_min else 0.0
