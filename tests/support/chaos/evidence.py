"""What carriers, pods and Postgres have on record when a run is over, as values. Checkers see this and nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from tests.support.agent.pod_records import PodRecord, read_pods
from tests.support.chaos.load import Entry
from tests.support.chaos.machine import World
from tests.support.chaos.plan import Plan, Strike
from trunkline.telephony.simulator.answered_calls import AnsweredCall
from trunkline.telephony.simulator.ledger import Dial


@dataclass(frozen=True, slots=True)
class LeadRow:
    id: UUID
    merchant_id: str
    campaign_id: UUID | None
    request_id: str
    phone: str
    status: str
    outcome: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class AttemptRow:
    id: UUID
    lead_id: UUID | None
    direction: str
    campaign_id: UUID | None
    to_phone: str
    state: str
    holds_channel: bool
    ordinal: int
    intent_at: datetime
    answered_at: datetime | None
    agent: str | None


@dataclass(frozen=True, slots=True)
class Move:
    """Of an attempt or a lead, as Postgres wrote it."""

    id: UUID
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class AppRow:
    """Something that the application was asked for, or did. `no` counts by table."""

    no: int
    what: str
    key: str
    name: str


@dataclass(frozen=True, slots=True)
class AppRun:
    """A run of a job whose end was committed."""

    key: str
    name: str
    began: datetime
    ended: datetime


@dataclass(frozen=True, slots=True)
class Waiting:
    """A lead that was not called when everything was quiet, and what `why` says of it."""

    lead_id: str
    merchant_id: str
    campaign_id: str | None
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProcessState:
    """Of one process at rest."""

    name: str
    rss_mb: float
    log_lines_per_s: float
    connections: int


@dataclass(frozen=True)
class Evidence:
    plan: Plan
    diary: Sequence[Entry] = ()
    dials: Sequence[Dial] = ()
    answered: Sequence[AnsweredCall] = ()
    pods: Sequence[PodRecord] = ()
    leads: Sequence[LeadRow] = ()
    attempts: Sequence[AttemptRow] = ()
    attempt_moves: Sequence[Move] = ()
    lead_moves: Sequence[Move] = ()
    asked: Sequence[AppRow] = ()
    done: Sequence[AppRow] = ()
    runs: Sequence[AppRun] = ()
    # By reminder: occurrences that have or had a lead.
    occurrences: Mapping[str, int] = field(default_factory=dict)
    # Actions of the audit log with their subjects.
    audit: Sequence[tuple[str, str]] = ()
    alarms: Sequence[str] = ()
    waiting: Sequence[Waiting] = ()
    processes: Sequence[ProcessState] = ()
    # What Valkey still held at rest, in a sentence; empty: nothing.
    left_in_valkey: str = ""
    forged: Sequence[int] = ()
    # Keys that were revoked and are still accepted, with the seconds since the answer.
    still_accepted: Sequence[tuple[str, float]] = ()
    # When each strike began and was taken back.
    struck: Sequence[tuple[Strike, float, float]] = ()


async def gather(
    world: World,
    diary: Sequence[Entry],
    *,
    waiting: Sequence[Waiting],
    processes: Sequence[ProcessState],
    left_in_valkey: str,
    struck: Sequence[tuple[Strike, float, float]],
    still_accepted: Sequence[tuple[str, float]],
) -> Evidence:
    leads = await world.rows(
        "SELECT id, merchant_id, campaign_id, request_id, phone, status, outcome, outcome_reason FROM leads"
    )
    attempts = await world.rows(
        "SELECT id, lead_id, direction, campaign_id, to_phone, state, holds_channel, ordinal, intent_at, answered_at,"
        " agent FROM attempts"
    )
    moves = await world.rows(
        "SELECT attempt_id, before, after FROM seen_moves WHERE before IS NOT NULL ORDER BY no"
    )
    statuses = await world.rows("SELECT lead_id, before, after FROM seen_statuses ORDER BY no")
    app = "SELECT no, what, key, name FROM public.{} ORDER BY no"
    runs = await world.rows("SELECT key, name, began, ended FROM public.app_runs WHERE ended IS NOT NULL")
    occurrences = await world.rows(
        "SELECT reminder_id::text, count(lead_id) FROM reminder_occurrences GROUP BY 1"
    )
    audit = await world.rows("SELECT action, coalesce(subject, '') FROM audit_log ORDER BY id")
    alarms = await world.rows("SELECT name FROM alarms")
    tiers = await world.rows("SELECT name, tier FROM pods")
    return Evidence(
        plan=world.plan,
        diary=list(diary),
        dials=list(world.carrier.ledger.dials),
        answered=list(world.carrier.ledger.answered),
        pods=read_pods(world.pod_lives(), {row["name"]: row["tier"] for row in tiers}),
        leads=[LeadRow(*row) for row in leads],
        attempts=[AttemptRow(*row) for row in attempts],
        attempt_moves=[Move(*row) for row in moves],
        lead_moves=[Move(*row) for row in statuses],
        asked=[AppRow(*row) for row in await world.rows(app.format("app_asked"))],
        done=[AppRow(*row) for row in await world.rows(app.format("app_done"))],
        runs=[AppRun(*row) for row in runs],
        occurrences={row[0]: row[1] for row in occurrences},
        audit=[(row[0], row[1]) for row in audit],
        alarms=[row[0] for row in alarms],
        waiting=waiting,
        processes=processes,
        left_in_valkey=left_in_valkey,
        forged=list(world.forged),
        still_accepted=still_accepted,
        struck=struck,
    )
