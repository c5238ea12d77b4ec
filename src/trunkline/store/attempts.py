"""Facts of attempts, and decisions about their leads. Lock order everywhere: leads, then attempts."""

from collections.abc import Collection, Mapping, Sequence
from datetime import date, datetime
from uuid import UUID

import asyncpg

from trunkline.model import Agent, Budget, CallFacts, Entry, Finish, Retry
from trunkline.states import WRITTEN_OFF, AttemptState, LeadStatus, sources
from trunkline.store.database import Connection
from trunkline.store.rows import columns, pick, pick_or_none
from trunkline.store.schedule import entry_of
from trunkline.store.sql import Area
from trunkline.store.tenants import Tenant
from trunkline.value import Private, Value

_SQL = Area("attempts")


# The states from which a late response to the dial request may still move an attempt.
_SOURCES = {to: ",".join(state for state in sources(to) if state not in WRITTEN_OFF) for to in AttemptState}

# An index refuses a row.
TAKEN: tuple[type[BaseException], ...] = (asyncpg.UniqueViolationError,)


class ReportedOutcome(Value, frozen=True):
    """The part of an agent's report that decides about the lead."""

    disposition: str | None = None
    opt_out: bool = False
    callback_at: datetime | None = None


class Attempt(Value, frozen=True):
    """An attempt, and what its lead still allows."""

    id: UUID
    lead_id: UUID | None
    attempt_no: int
    carrier: str
    account: str
    holds_channel: bool
    facts: CallFacts
    lead_status: LeadStatus | None
    budget: Budget
    is_newest: bool
    # The lead was cancelled while it was being called, with or without a hang-up.
    is_cancelled: bool = False
    cancel_reason: str | None = None
    hang_up_wanted: bool = False
    lead_outcome: str | None = None
    # Its owner ("" for an inbound call without one), the callee, the start, and the money that was reserved for it.
    reseller_id: str = ""
    merchant_id: str = ""
    campaign_id: UUID | None = None
    phone: Private[str] = ""
    timezone: str | None = None
    # The time whose day it was counted under.
    counted_at: datetime | None = None
    reserved_micros: int = 0
    # What its agent reported, and when that was read, by Postgres's clock.
    report: ReportedOutcome | None = None
    read_at: datetime | None = None
    # The agent that the call was assigned to; None: none was.
    allocation: "CallAllocation | None" = None
    # It began after the merchant's dials were stopped because of answered calls without an agent.
    is_probe: bool = False
    number_id: UUID | None = None

    @property
    def tenant(self) -> Tenant:
        return Tenant(self.reseller_id or None, self.merchant_id or None)


class CallAllocation(Value, frozen=True):
    """The agent that a call was assigned to, as evidence. Times are Postgres's own."""

    # When its stream was given to the call, and whether the agent has proven that it took it.
    begun_at: datetime | None
    has_joined: bool
    # The last heartbeat of the same process, if that did not name the call.
    unnamed_at: datetime | None
    # Its stream ended before an agent had taken it.
    was_refused: bool = False


class DueAgain(Value, frozen=True):
    """A retry, at the first open time after its delay."""

    retry: Retry
    due_at: datetime
    closes_at: datetime | None


class Cost(Value, frozen=True):
    attempt_id: UUID
    micros: int
    merchant_id: str
    day: date


class Result(Value, frozen=True):
    """The carrier's response to a dial request."""

    attempt_id: UUID
    state: AttemptState
    call_id: str | None = None
    reason: str | None = None


class AttemptCheck(Value, frozen=True):
    """An attempt without recent events."""

    id: UUID
    lead_id: UUID | None
    state: AttemptState
    carrier: str
    account: str
    carrier_call_id: str | None
    to_phone: Private[str]
    from_phone: Private[str]
    intent_at: datetime
    doubt_checks: int
    is_closed: bool
    age_s: float


class Unexplained(Value, frozen=True):
    """How often in a row a lead was refused for no known reason; of several, when the first was sent."""

    times: int
    first_at: datetime | None = None


class CallOwner(Value, frozen=True):
    """`is_overdialled`: no agent was reserved for the call, by choice."""

    merchant_id: str
    are_agents_elsewhere: bool
    is_overdialled: bool
    reseller_id: str
    campaign_id: UUID | None
    merchant_name: str
    to_phone: Private[str]
    from_phone: Private[str]


async def lock(tx: Connection, attempt_ids: Sequence[UUID]) -> dict[UUID, Attempt]:
    """Lock the leads of these attempts, then the attempts, each in id order; then read both."""
    await tx.execute(_SQL.lock, attempt_ids)
    locked = {}
    for row in await tx.fetch(_SQL.read, attempt_ids):
        state, agent, lead_status = AttemptState(row["state"]), row["agent"], row["lead_status"]
        budget = Budget(
            row["attempt_count"] or 1,
            row["max_attempts"] or 1,
            row["carrier_error_count"] or 0,
            row["no_agent_count"] or 0,
        )
        locked[row["id"]] = pick(
            Attempt,
            row,
            facts=pick(CallFacts, row, state=state, agent=Agent(agent) if agent else None),
            lead_status=LeadStatus(lead_status) if lead_status else None,
            budget=budget,
            reseller_id=row["reseller_id"] or "",
            merchant_id=row["merchant_id"] or "",
            report=pick(ReportedOutcome, row) if row["is_reported"] else None,
            allocation=pick(CallAllocation, row) if row["is_allocated"] else None,
        )
    return locked


async def write_results(tx: Connection, results: Sequence[Result]) -> set[UUID]:
    """Compare-and-set many responses at once; returns the ids whose state became that of their response."""
    ids, states, *columns = zip(
        *[(r.attempt_id, r.state.value, _SOURCES[r.state], r.call_id, r.reason) for r in results], strict=True
    )
    rows = await tx.fetch(_SQL.write_results, ids, states, *columns)
    expected = dict(zip(ids, states, strict=True))
    return {row["id"] for row in rows if row["state"] == expected[row["id"]]}


async def unexplained(tx: Connection, lead_ids: Collection[UUID]) -> dict[UUID, Unexplained]:
    """By lead, with the attempts that this transaction has written. Their leads are locked."""
    rows = await tx.fetch(_SQL.unexplained, list(lead_ids))
    return {row["lead_id"]: Unexplained(row["times"], row["first_at"]) for row in rows}


async def apply_facts(tx: Connection, facts: Mapping[UUID, CallFacts]) -> bool:
    """Write the facts. The caller holds the locks under which they were computed. False if an index refuses one: the
    call's id, its channel or its position as the live one is another attempt's. Then none is written."""
    try:
        async with tx.transaction():
            await tx.execute(
                _SQL.apply_facts, list(facts), *columns(facts.values(), *CallFacts.__struct_fields__)
            )
    except TAKEN:
        return False
    return True


async def finish_leads(tx: Connection, ends: Mapping[UUID, Finish], *, revises: bool = False) -> None:
    """`revises`: changes the outcome of ended leads, whose agents reported after the carrier."""
    if ends:
        outcomes = [(finish.word or finish.outcome.value, finish.reason) for finish in ends.values()]
        words, reasons = zip(*outcomes, strict=True)
        await tx.execute(_SQL.revise_leads if revises else _SQL.finish_leads, list(ends), words, reasons)


async def retry_leads(
    tx: Connection, retries: Mapping[UUID, DueAgain], *, status: LeadStatus = LeadStatus.PROCESSING
) -> list[Entry]:
    """Send leads of this status back to BACKLOG; returns their entries for the schedule."""
    if not retries:
        return []
    due_again = list(retries.values())
    rows = await tx.fetch(
        _SQL.retry_leads,
        list(retries),
        *columns(due_again, "due_at", "closes_at"),
        [int(each.retry.carrier_error) for each in due_again],
        [int(not each.retry.counted) for each in due_again],
        status.value,
        [int(each.retry.no_agent) for each in due_again],
    )
    return [entry_of(row) for row in rows]


async def count_again(tx: Connection, lead_ids: Sequence[UUID]) -> None:
    """The last call of these leads had an agent after all: they do not wait because of it, and it counts."""
    if lead_ids:
        await tx.execute(_SQL.count_again, lead_ids)


async def settle_costs(tx: Connection, costs: Sequence[Cost]) -> None:
    """Replace the money that was reserved for calls by their cost. Once for each: a known cost stays."""
    await tx.execute(_SQL.settle_costs, *columns(costs, "attempt_id", "micros", "merchant_id", "day"))


async def owner(conn: Connection, attempt_id: UUID) -> CallOwner | None:
    """The owner of this attempt's call."""
    return pick_or_none(CallOwner, await conn.fetchrow(_SQL.owner, attempt_id))


async def claim_checks(
    conn: Connection, *, limit: int, lease_s: float, not_of: Collection[tuple[str, str]] = ()
) -> list[AttemptCheck]:
    """Attempts to check now, of all accounts but these; other processes leave them out for `lease_s`."""
    carriers, accounts = [carrier for carrier, _ in not_of], [account for _, account in not_of]
    rows = await conn.fetch(_SQL.claim_checks, limit, lease_s, carriers, accounts)
    return [pick(AttemptCheck, row, state=AttemptState(row["state"])) for row in rows]


async def check_later(conn: Connection, waits: Mapping[UUID, float], *, doubted: bool) -> None:
    """Check again after these seconds. `doubted` counts a query to the carrier without a result."""
    if waits:
        await conn.execute(_SQL.check_later, list(waits), list(waits.values()), [int(doubted)] * len(waits))


async def mark_in_doubt(conn: Connection, attempt_ids: Sequence[UUID]) -> list[UUID]:
    """Move attempts whose request got no reply to `in_doubt`."""
    rows = await conn.fetch(_SQL.mark_in_doubt, attempt_ids)
    return [row["id"] for row in rows]


async def write_off(
    tx: Connection, attempt_id: UUID, state: AttemptState, reason: str, held_s: float
) -> bool:
    """End an in-doubt attempt without a call. False if a webhook came first."""
    return await tx.fetchval(_SQL.write_off, attempt_id, state.value, reason, held_s) is not None


async def free_channel(tx: Connection, attempt_id: UUID) -> bool:
    return await tx.fetchval(_SQL.free_channel, attempt_id) is not None


async def unknown(conn: Connection, attempt_id: UUID) -> AttemptCheck | None:
    """The attempt, if its state is `unknown`."""
    row = await conn.fetchrow(_SQL.unknown, attempt_id)
    return pick(AttemptCheck, row, state=AttemptState(row["state"])) if row else None


async def mark_absent(tx: Connection, attempt_id: UUID) -> bool:
    """Its carrier has no such call. False if a webhook came first."""
    return await tx.fetchval(_SQL.mark_absent, attempt_id) is not None


async def reattach_leads(tx: Connection, written_off: Sequence[Attempt]) -> None:
    """The leads of these attempts are being called by them after all."""
    await tx.execute(
        _SQL.reattach_leads,
        [attempt.lead_id for attempt in written_off],
        [int(attempt.facts.state is AttemptState.ABSENT) for attempt in written_off],
    )


async def hold_again(tx: Connection, attempt_id: UUID, channel_no: int | None = None) -> None:
    """Give a call that reappeared a channel, the lowest free one unless it is named. An index refuses it if another
    call has taken that channel meanwhile."""
    await tx.execute(_SQL.hold_again, attempt_id, channel_no)


async def known_call_ids(conn: Connection, carrier: str, call_ids: Sequence[str]) -> set[str]:
    """Those of the calls that belong to an attempt already."""
    rows = await conn.fetch(_SQL.known_call_ids, carrier, call_ids)
    return {row["carrier_call_id"] for row in rows}
