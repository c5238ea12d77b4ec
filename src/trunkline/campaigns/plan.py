"""The dry run: what a campaign would do, in simulated time, before any call. Pure, and without a database.

Leads that may be called at the same times, with the same priority and attempts left, are counted and not followed one
by one. Time goes in steps of a minute, and from a closed window to the next opening in one step. In each step as many
calls start as pace, channels and the day's limit allow, by priority and then by due time; a fixed share of them is
answered, and the others retry as the rules say. Nothing is random: the same file gives the same plan.

The simulation leaves out pre-checks, recent contacts and other campaigns on the same channels. The command line and the
API share all of it: settings and a file in, a report out.
"""

import heapq
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime, timedelta
from itertools import chain
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from pydantic import ConfigDict, Field

from trunkline.campaigns.rows import Columns, reader, unmapped
from trunkline.leads import phones
from trunkline.leads.calling_policy import EMPTY, CallingPolicy, Effective, PolicyProblem, problems
from trunkline.leads.immutable import Frozen
from trunkline.leads.limits import PersonLimit
from trunkline.leads.retries import Retries
from trunkline.leads.uploads import BrokenUpload, UploadRow
from trunkline.leads.windows import Opening, WindowRule, next_opening
from trunkline.leads.zones import zones_of
from trunkline.model import Outcome
from trunkline.schema.fields import Moment

ROWS_MAX = 1_000_000
STEP = timedelta(minutes=1)
STEP_S = STEP.total_seconds()
SAMPLES_MAX = 100
# Country code, area code, and one more digit.
PREFIX = 6


class PlanSettings(Frozen):
    """What a plan is made for. What is left out is guessed, and the report says so."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "policy": {"packs": ["us-tcpa"], "starts_per_s": 5},
                    "channels": 50,
                    "starts_at": "2030-05-01T09:00:00-07:00",
                }
            ]
        }
    )

    policy: CallingPolicy = Field(EMPTY, description="The campaign's layer of calling policy.")
    starts_at: Moment | None = Field(None, description="Left out: now.")
    ends_at: Moment | None = None
    channels: int = Field(10, ge=1, le=100_000, description="The maximum of concurrent calls of its numbers.")
    answer_rate: float = Field(0.5, ge=0, le=1, description="The share of answered calls.")
    call_s: float = Field(120.0, gt=0, le=86_400, description="How long an answered call takes.")
    ring_s: float = Field(25.0, gt=0, le=600, description="How long unanswered calls ring.")
    max_attempts: int = Field(3, ge=1, le=20)
    priority: int = Field(50, ge=1, le=99)
    default_region: str | None = Field(
        None, pattern=r"^[A-Z]{2}$", description="The region of phones without a country code."
    )
    horizon_days: int = Field(60, ge=1, le=400, description="The number of days to simulate.")

    def problems(self, now: datetime) -> list[PolicyProblem]:
        problems_found = problems(self.policy, "campaign", (), now)
        if self.ends_at is not None and self.ends_at <= (self.starts_at or now):
            problems_found.append(PolicyProblem("ends_at", "The campaign ends before it starts."))
        return problems_found

    @property
    def held_s(self) -> float:
        """How long a call holds its channel, on average."""
        return self.answer_rate * self.call_s + (1 - self.answer_rate) * self.ring_s


@dataclass(frozen=True, slots=True, eq=False)
class CalleeRules:
    """The rules for a callee: one object for all that share them, compared by identity."""

    rules: tuple[WindowRule, ...]
    limits: tuple[PersonLimit, ...]


@dataclass(frozen=True, slots=True)
class PlannedLead:
    row: int
    phone: str
    place: CalleeRules
    wanted_at: datetime | None
    priority: int
    max_attempts: int


@dataclass(frozen=True, slots=True)
class PlanRefusal:
    """A row that will not be called, and why."""

    row: int
    reason: str
    detail: str = ""


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


class People:
    """Converts rows one by one. A phone that came before is a duplicate."""

    def __init__(
        self, policy: Effective, settings: PlanSettings, columns: Columns, do_not_call: Container[str]
    ):
        self._policy = policy
        self._settings = settings
        self._columns = columns
        self._do_not_call = do_not_call
        self._seen: set[str] = set()
        self._places: dict[tuple[object, ...], CalleeRules] = {}
        self._alike: dict[tuple[object, ...], CalleeRules] = {}
        self._zones = available_timezones()

    def lead(self, row: UploadRow) -> PlannedLead | PlanRefusal:
        if row.error is not None or not isinstance(row.value, dict):
            return PlanRefusal(row.no, "unreadable", row.error or "The row is no object.")
        fields = {self._columns.name(str(column)): cell for column, cell in row.value.items()}
        phone = phones.to_e164(str(fields.get("phone") or ""), self._settings.default_region)
        if isinstance(phone, phones.BadPhone):
            return PlanRefusal(row.no, "invalid_phone", phone.error)
        if phone in self._seen:
            return PlanRefusal(row.no, "duplicate", phone)
        if phone in self._do_not_call:
            return PlanRefusal(row.no, "do_not_call", phone)
        if not self._policy.permits(phone):
            return PlanRefusal(row.no, "destination_not_allowed", phone)
        self._seen.add(phone)
        try:
            return self._planned(row.no, phone, fields)
        except ValueError as error:
            return PlanRefusal(row.no, "invalid_row", str(error))

    def _planned(self, row_no: int, phone: str, fields: dict[str | None, Any]) -> PlannedLead:
        zone = fields.get("timezone") or None
        if zone is not None and zone not in self._zones:
            raise ValueError(f"there is no time zone {str(zone)[:60]!r}")
        place = self._place(phone, zone)
        if place.rules and not all(rule.zones for rule in place.rules):
            raise ValueError("its time zone is unknown")
        return PlannedLead(
            row_no,
            phone,
            place,
            _parse_time(fields.get("scheduled_at")),
            _number(fields.get("priority"), self._settings.priority, 1, 99),
            _number(fields.get("max_attempts"), self._settings.max_attempts, 1, 20),
        )

    def _place(self, phone: str, zone: str | None) -> CalleeRules:
        """Computed once for all numbers with the same prefix and length: exact enough for a plan, and five times as
        fast. The dial computes it for each."""
        alike = (phone[:PREFIX], len(phone), zone)
        place = self._alike.get(alike)
        if place is None:
            place = self._alike[alike] = self._place_of(phone, zone)
        return place

    def _place_of(self, phone: str, zone: str | None) -> CalleeRules:
        """One object for all callees with the same rules: most leads of a campaign share a few."""
        policy = self._policy
        own_zone = zone or policy.timezone
        zones = (own_zone,) if own_zone else zones_of(phone) if policy.windows or policy.packs else ()
        packs = tuple(pack.name for pack in policy.packs if pack.concerns(phone)) if policy.packs else ()
        place = self._places.get((zones, packs))
        if place is None:
            place = CalleeRules(policy.rules_of(phone, zone), policy.limits_of(phone))
            self._places[zones, packs] = place
        return place


def _parse_time(text: Any) -> datetime | None:
    if text in (None, ""):
        return None
    moment = datetime.fromisoformat(str(text))
    if moment.tzinfo is None:
        raise ValueError("scheduled_at has no offset from UTC")
    return moment.astimezone(UTC)


def _number(value: Any, usual: int, least: int, most: int) -> int:
    number = usual if value in (None, "") else int(value)
    if not least <= number <= most:
        raise ValueError(f"{number} is not between {least} and {most}")
    return number


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
    def __init__(self, policy: Effective, world: PlanSettings, now: datetime):
        """Its time is UTC, in whole minutes."""
        self._policy = policy
        self._world = world
        self._starts_at = (world.starts_at or now).astimezone(UTC).replace(second=0, microsecond=0)
        horizon = self._starts_at + timedelta(days=world.horizon_days)
        self._until = min(world.ends_at.astimezone(UTC), horizon) if world.ends_at else horizon
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
        now: datetime | None = self._next(self._starts_at)
        while now is not None and now < self._until:
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
        if group.rules and group.open_at(self._starts_at) is None:
            self.plan.refuse(PlanRefusal(lead.row, "windows_never_open", lead.phone))
            return
        self.plan.people += 1
        self._wait(group, max(lead.wanted_at or self._starts_at, self._starts_at), _Cohort(1, 1))

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


def plan_file(
    blocks: Iterable[bytes],
    kind: str,
    settings: PlanSettings,
    policy: Effective,
    columns: Columns,
    now: datetime,
    do_not_call: Container[str] = frozenset(),
) -> dict[str, Any]:
    """The report on a file of this media type, or `BrokenUpload`. `policy` has all layers."""
    return plan(_rows(blocks, kind, columns), settings, policy, unmapped(kind, columns), now, do_not_call)


def _rows(blocks: Iterable[bytes], kind: str, columns: Columns) -> Iterator[UploadRow]:
    rows = reader(kind, columns)
    pieces = chain.from_iterable(rows.read(block) for block in blocks)
    for row in chain(pieces, rows.read(b"", is_end=True)):
        if row.no > ROWS_MAX:
            raise BrokenUpload("too_many_rows", f"A plan is made for at most {ROWS_MAX} rows.")
        yield row


def plan(
    rows: Iterable[UploadRow],
    settings: PlanSettings,
    policy: Effective,
    columns: Columns,
    now: datetime,
    do_not_call: Container[str] = frozenset(),
) -> dict[str, Any]:
    """The report on rows whose `columns` are still to be mapped."""
    people = People(policy, settings, columns, do_not_call)
    return _report(Simulation(policy, settings, now).run(map(people.lead, rows)), settings, now)


def _report(plan: Plan, world: PlanSettings, now: datetime) -> dict[str, Any]:
    return {
        "rows": plan.rows,
        "people": plan.people,
        "calls": plan.calls,
        "answered": plan.answered,
        "not_reached": plan.not_reached,
        "not_called": dict(plan.not_called),
        "first_call_at": _text(plan.first_call_at),
        "last_call_at": _text(plan.last_call_at),
        "ends_at": _text(plan.ends_at),
        "calls_per_hour": [
            {"hour": _text(hour), **asdict(each)} for hour, each in sorted(plan.by_hour.items())
        ],
        "held_back_by": dict(plan.held_back_by),
        "problems": [asdict(each) for each in plan.samples],
        "assumed": {
            "starts_at": _text(world.starts_at or now),
            **world.model_dump(include={"channels", "answer_rate", "call_s", "ring_s"}),
        },
    }


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
