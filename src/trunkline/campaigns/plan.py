"""The dry run: what a campaign would do, in simulated time, before any call. Pure, and without a database.

Leads that may be called at the same times, with the same priority and attempts left, are counted and not followed one
by one. Time goes in steps of a minute, and from a closed window to the next opening in one step. In each step as many
calls start as pace, channels and the day's limit allow, by priority and then by due time; a fixed share of them is
answered, and the others retry as the rules say. Nothing is random: the same file gives the same plan.

The simulation leaves out pre-checks, recent contacts and other campaigns on the same channels.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from trunkline.campaigns.plan_leads import PlannedLead, PlanRefusal
from trunkline.leads.calling_policy import Effective
from trunkline.leads.retries import Retries
from trunkline.leads.windows import Opening, WindowRule, next_opening
from trunkline.model import Outcome

STEP = timedelta(minutes=1)
STEP_S = STEP.total_seconds()
SAMPLES_MAX = 100


@dataclass(frozen=True, slots=True)
class Assumptions:
    """The assumptions of the simulation."""

    starts_at: datetime
    ends_at: datetime | None = None
    channels: int = 10
    answer_rate: float = 0.5
    call_s: float = 120.0
    ring_s: float = 25.0
    horizon_days: int = 60

    @property
    def until(self) -> datetime:
        horizon = self.starts_at + timedelta(days=self.horizon_days)
        return min(self.ends_at, horizon) if self.ends_at else horizon

    @property
    def held_s(self) -> float:
        """How long a call holds its channel, on average."""
        return self.answer_rate * self.call_s + (1 - self.answer_rate) * self.ring_s


@dataclass(slots=True)
class Hour:
    calls: int = 0
    answered: int = 0


@dataclass(slots=True)
class Plan:
    rows: int = 0
    people: int = 0
    calls: int = 0
    answered: int = 0
    not_reached: int = 0
    first_call_at: datetime | None = None
    last_call_at: datetime | None = None
    ends_at: datetime | None = None
    by_hour: dict[datetime, Hour] = field(default_factory=dict)
    not_called: Counter[str] = field(default_factory=Counter)
    samples: list[PlanRefusal] = field(default_factory=list)
    # In how many minutes each bound held back calls that were due and allowed.
    held_back_by: Counter[str] = field(default_factory=Counter)

    def refuse(self, refusal: PlanRefusal) -> None:
        self.not_called[refusal.reason] += 1
        if len(self.samples) < SAMPLES_MAX:
            self.samples.append(refusal)


@dataclass(slots=True)
class _Cohort:
    """Leads in the same state: how many, in their k-th attempt, called before at these times."""

    count: int
    attempt: int
    called_at: tuple[datetime, ...] = ()


@dataclass(slots=True)
class _Group:
    """Leads that may be called at the same times, under the same limits."""

    rules: tuple[WindowRule, ...]
    priority: int
    max_attempts: int
    limits: tuple[tuple[int, int], ...]
    # By due time. The number keeps cohorts from being compared.
    waiting: list[tuple[datetime, int, _Cohort]] = field(default_factory=list)
    opening: Opening | None = None

    def open_at(self, at: datetime) -> datetime | None:
        """The first open moment from `at` on. None: never."""
        if not self.rules:
            return at
        known = self.opening
        if known is None or (known.closes_at is not None and at >= known.closes_at) or at < known.opens_at:
            known = self.opening = next_opening(self.rules, at)
        return None if known is None else max(at, known.opens_at)


class Simulation:
    def __init__(self, policy: Effective, world: Assumptions):
        self._policy = policy
        self._world = world
        self._groups: dict[object, _Group] = {}
        self._made = 0
        self._answer_debt = 0.0
        self._day_zone = ZoneInfo(policy.timezone or "UTC")
        self._by_day: Counter[date] = Counter()
        self.plan = Plan()

    def run(self, leads: Iterable[PlannedLead | PlanRefusal]) -> Plan:
        for lead in leads:
            self.plan.rows += 1
            if isinstance(lead, PlanRefusal):
                self.plan.refuse(lead)
            else:
                self._add(lead)
        now: datetime | None = self._next(self._world.starts_at)
        while now is not None and now < self._world.until:
            self._step(now)
            now = self._next(now + STEP)
        self._count_left(now)
        return self.plan

    def _add(self, lead: PlannedLead) -> None:
        key = (lead.place, lead.priority, lead.max_attempts)
        group = self._groups.get(key)
        if group is None:
            limits = tuple((limit.max_calls, limit.window_h) for limit in lead.place.limits)
            group = _Group(lead.place.rules, lead.priority, lead.max_attempts, limits)
            self._groups[key] = group
        if group.rules and group.open_at(self._world.starts_at) is None:
            self.plan.refuse(PlanRefusal(lead.row, "windows_never_open", lead.phone))
            return
        self.plan.people += 1
        self._wait(group, max(lead.wanted_at or self._world.starts_at, self._world.starts_at), _Cohort(1, 1))

    def _wait(self, group: _Group, due: datetime, cohort: _Cohort) -> None:
        """Cohorts that are due at the same time and alike are merged."""
        if group.waiting and cohort.attempt == 1:
            last = group.waiting[-1]
            if last[0] == due and last[2].attempt == 1:
                last[2].count += cohort.count
                return
        self._made += 1
        heapq.heappush(group.waiting, (due, self._made, cohort))

    def _next(self, at: datetime) -> datetime | None:
        """The next time at which a lead is due and may be called."""
        moments = (
            group.open_at(max(at, group.waiting[0][0])) for group in self._groups.values() if group.waiting
        )
        return min((moment for moment in moments if moment is not None), default=None)

    def _step(self, now: datetime) -> None:
        capacity, bound = self._capacity(now)
        for group in sorted(self._due(now), key=lambda group: (group.priority, group.waiting[0][0])):
            while capacity > 0 and group.waiting and group.waiting[0][0] <= now:
                due, nth, cohort = heapq.heappop(group.waiting)
                started = min(cohort.count, capacity)
                capacity -= started
                if cohort.count > started:
                    left = _Cohort(cohort.count - started, cohort.attempt, cohort.called_at)
                    heapq.heappush(group.waiting, (due, nth, left))
                self._call(now, group, cohort, started)
        if capacity == 0 and any(True for _ in self._due(now)):
            self.plan.held_back_by[bound] += 1

    def _due(self, now: datetime) -> Iterator[_Group]:
        for group in self._groups.values():
            if group.waiting and group.waiting[0][0] <= now and group.open_at(now) == now:
                yield group

    def _capacity(self, now: datetime) -> tuple[int, str]:
        """How many calls may start in this minute, and which bound sets that."""
        world, policy = self._world, self._policy
        bounds = {"channels": world.channels * STEP_S / max(world.held_s, 1.0)}
        if policy.campaign_max_concurrent is not None:
            bounds["max_concurrent"] = policy.campaign_max_concurrent * STEP_S / max(world.held_s, 1.0)
        if policy.campaign_starts_per_s is not None:
            bounds["pace"] = policy.campaign_starts_per_s * STEP_S
        if policy.attempts_per_day is not None:
            today = now.astimezone(self._day_zone).date()
            bounds["attempts_per_day"] = policy.attempts_per_day - self._by_day[today]
        bound = min(bounds, key=lambda name: bounds[name])
        # A pace below one a minute starts one call every few minutes.
        starts = int(bounds[bound])
        share = bounds[bound] - starts
        if share and int(now.timestamp() / STEP_S * share) != int((now.timestamp() / STEP_S - 1) * share):
            starts += 1
        return max(starts, 0), bound

    def _call(self, now: datetime, group: _Group, cohort: _Cohort, started: int) -> None:
        plan = self.plan
        self._answer_debt += started * self._world.answer_rate
        answered = min(started, int(self._answer_debt + 1e-9))
        self._answer_debt -= answered
        plan.calls += started
        plan.answered += answered
        plan.first_call_at = plan.first_call_at or now
        plan.last_call_at = now
        hour = plan.by_hour.setdefault(now.replace(minute=0, second=0, microsecond=0), Hour())
        hour.calls += started
        hour.answered += answered
        self._by_day[now.astimezone(self._day_zone).date()] += started
        if started > answered:
            self._retry(now, group, cohort, started - answered)

    def _retry(self, now: datetime, group: _Group, cohort: _Cohort, count: int) -> None:
        delay_s = _delay_s(self._policy.retries, cohort.attempt)
        if cohort.attempt >= group.max_attempts or delay_s is None:
            self.plan.not_reached += count
            return
        called_at = (*cohort.called_at, now)
        due = now + timedelta(seconds=max(delay_s, STEP_S))
        for max_calls, window_h in group.limits:
            if len(called_at) >= max_calls:
                due = max(due, called_at[-max_calls] + timedelta(hours=window_h))
        self._wait(group, due, _Cohort(count, cohort.attempt + 1, called_at))

    def _count_left(self, now: datetime | None) -> None:
        """A lead that waits at the end was not called, or not often enough."""
        reason = "past_the_end" if self._world.ends_at else "beyond_the_horizon"
        for group in self._groups.values():
            for _, _, cohort in group.waiting:
                if cohort.attempt == 1:
                    self.plan.not_called[reason if now else "windows_never_open"] += cohort.count
                else:
                    self.plan.not_reached += cohort.count
        if self.plan.last_call_at is not None:
            self.plan.ends_at = self.plan.last_call_at + timedelta(seconds=self._world.call_s)


def _delay_s(retries: Retries, attempt: int) -> float | None:
    """After the k-th unanswered call. None: the rules end the lead there."""
    rule = retries.rule(Outcome.NO_ANSWER.value, None)
    return None if rule is not None and not rule.retry else retries.delay_s(attempt, rule)


def simulate(leads: Iterable[PlannedLead | PlanRefusal], policy: Effective, world: Assumptions) -> Plan:
    assert world.starts_at.tzinfo is not None
    started = Assumptions(
        world.starts_at.astimezone(UTC).replace(second=0, microsecond=0),
        world.ends_at and world.ends_at.astimezone(UTC),
        world.channels,
        world.answer_rate,
        world.call_s,
        world.ring_s,
        world.horizon_days,
    )
    return Simulation(policy, started).run(leads)
