"""A whole plan, as the command line and the API share it: settings and rows in, a report out. Pure."""

from collections.abc import Container, Iterable, Iterator
from datetime import datetime
from typing import Any, Literal

from pydantic import ConfigDict, Field

from trunkline.campaigns.plan import Assumptions, Plan, simulate
from trunkline.campaigns.plan_leads import People, Usual
from trunkline.campaigns.rows import FIELDS, NUMBERS, Columns
from trunkline.leads.calling_policy import EMPTY, CallingPolicy, Effective, PolicyProblem, problems
from trunkline.leads.immutable import Frozen
from trunkline.leads.ingest import Moment
from trunkline.leads.uploads import BrokenUpload, CsvLines, JsonArray, JsonLines, Rows, UploadRow

ROWS_MAX = 1_000_000
BLOCK = 1024 * 1024

Kind = Literal["text/csv", "application/json", "application/x-ndjson"]


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

    def assumptions(self, now: datetime) -> Assumptions:
        return Assumptions(
            self.starts_at or now,
            self.ends_at,
            self.channels,
            self.answer_rate,
            self.call_s,
            self.ring_s,
            self.horizon_days,
        )

    def problems(self, now: datetime) -> list[PolicyProblem]:
        problems_found = problems(self.policy, "campaign", (), now)
        if self.ends_at is not None and self.ends_at <= (self.starts_at or now):
            problems_found.append(PolicyProblem("ends_at", "The campaign ends before it starts."))
        return problems_found


def reader(kind: str, columns: Columns) -> Rows:
    match kind:
        case "text/csv":
            return CsvLines(FIELDS, NUMBERS, columns.name)
        case "application/json":
            return JsonArray()
        case _:
            return JsonLines()


def rows_of(blocks: Iterable[bytes], rows: Rows) -> Iterator[UploadRow]:
    """All rows of a file, or `BrokenUpload`."""
    for block in blocks:
        yield from _bounded(rows.feed(block))
    yield from _bounded(rows.end())


def _bounded(rows: Iterator[UploadRow]) -> Iterator[UploadRow]:
    for row in rows:
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
    """The report. `policy` has all layers, `columns` maps the columns that the reader has not mapped yet."""
    usual = Usual(settings.default_region, settings.priority, settings.max_attempts)
    people = People(policy, usual, columns, do_not_call)
    world = settings.assumptions(now)
    return report(simulate(people.of(rows), policy, world), world)


def report(plan: Plan, world: Assumptions) -> dict[str, Any]:
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
            {"hour": _text(hour), "calls": each.calls, "answered": each.answered}
            for hour, each in sorted(plan.by_hour.items())
        ],
        "held_back_by": dict(plan.held_back_by),
        "problems": [
            {"row": each.row, "reason": each.reason, "detail": each.detail} for each in plan.samples
        ],
        "assumed": {
            "starts_at": _text(world.starts_at),
            "channels": world.channels,
            "answer_rate": world.answer_rate,
            "call_s": world.call_s,
            "ring_s": world.ring_s,
        },
    }


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
