"""Why is this lead not called? Asks every gate as the intent would, for a person who wants to know now.

Nothing is locked and nothing is written: the answer may be out of date when it is read, and never decides anything.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from trunkline.control.flags import EVENT_DISPATCH, decide
from trunkline.dispatch import gates
from trunkline.dispatch.agents import AGENTS_ELSEWHERE, AgentRule
from trunkline.dispatch.gates import Case
from trunkline.dispatch.gates_limits import Tally, more_questions, no_account_pace, questions
from trunkline.dispatch.policies import Owner, Policies
from trunkline.dispatch.refusals import Answer
from trunkline.leads.calling_policy import Effective
from trunkline.model import Grant
from trunkline.settings.tiers import chain
from trunkline.store import agents, allocations, decisions, flags, limits
from trunkline.store.agents import AgentRoom, SlotRule
from trunkline.store.database import Connection
from trunkline.store.decisions import Decision, Standing, StopOfLead
from trunkline.store.dispatch import LockedLead
from trunkline.store.flags import Flag
from trunkline.store.tenants import Tenant
from trunkline.value import replace

_NOBODY = UUID(int=0)
_LEVELS = ("platform", "reseller", "merchant")


@dataclass(frozen=True, slots=True)
class Check:
    """One gate. `until` is when it opens, as far as that is known."""

    gate: str
    is_open: bool
    detail: str | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Why:
    lead_id: UUID
    status: str
    answer: str
    next_at: datetime | None
    checks: tuple[Check, ...]
    history: tuple[Decision, ...]


@dataclass(frozen=True, slots=True)
class AgentCheck:
    """Which calls need an agent of ours, and how those that are free are counted."""

    rule: AgentRule = AGENTS_ELSEWHERE
    slots: SlotRule = field(default_factory=SlotRule)


ELSEWHERE = AgentCheck()


async def why(
    conn: Connection, policies: Policies, tenant: Tenant, lead_id: UUID, agent_check: AgentCheck = ELSEWHERE
) -> Why | None:
    """None if the tenant has no such lead."""
    standing = await decisions.standing(conn, tenant, lead_id)
    if standing is None:
        return None
    history = tuple(await decisions.of_lead(conn, lead_id))
    if standing.status != "BACKLOG":
        return Why(lead_id, standing.status, _settled(standing), None, (), history)
    owner = Owner(standing.lead.reseller_id, standing.lead.merchant_id, standing.lead.campaign_id)
    policy = (await policies.of(conn, [owner]))[owner]
    checks = (
        *_first_checks(standing, tenant, await decisions.stops(conn, standing.lead)),
        *_left_out(standing.lead, await flags.list_flags(conn)),
        await _agents(conn, standing, agent_check),
        *(await _policy_checks(conn, standing, policy)),
        _channel(standing),
    )
    closed = [check for check in checks if not check.is_open]
    next_at = max((check.until for check in closed if check.until), default=None)
    return Why(lead_id, standing.status, _sentence(closed), next_at, checks, history)


def _first_checks(standing: Standing, tenant: Tenant, stops: Sequence[StopOfLead]) -> Iterator[Check]:
    lead = standing.lead
    yield Check("due", lead.due_at <= lead.now, until=lead.due_at)
    if stops:
        for stop in stops:
            yield Check("control", False, _stop_in_words(stop, tenant), stop.ends_at)
    else:
        yield Check("control", True)
    is_left = lead.attempt_count < lead.max_attempts
    yield Check("attempts", is_left, f"{lead.attempt_count} of {lead.max_attempts} used")
    yield Check(
        "do_not_call", lead.listed_by is None, lead.listed_by and f"on the list of the {lead.listed_by}"
    )


def _left_out(lead: LockedLead, stored: Sequence[Flag]) -> Iterator[Check]:
    """As our own store has the flag; what a hosted service says is known to the dialers alone."""
    for flag in stored:
        if flag.name != EVENT_DISPATCH.name:
            continue
        is_on, _ = decide(
            flag, reseller_id=lead.reseller_id, merchant_id=lead.merchant_id, key=lead.merchant_id
        )
        yield Check("event_dispatch", is_on, None if is_on else "another system calls its leads")


def _stop_in_words(stop: StopOfLead, tenant: Tenant) -> str:
    """What somebody above the asking tenant wrote about a stop is not for the tenant's eyes; that there is one is."""
    own = "merchant" if tenant.merchant_id else "reseller" if tenant.reseller_id else "platform"
    is_above = _LEVELS.index(stop.set_by) < _LEVELS.index(own)
    return stop.scope if is_above else f"{stop.scope}: {stop.reason}"


async def _policy_checks(conn: Connection, standing: Standing, policy: Effective | None) -> list[Check]:
    if policy is None:
        return [Check("policy", False, "its calling policy cannot be read")]
    lead = standing.lead
    found = [
        Check("destination", policy.permits(lead.phone)),
        _of("window", gates.window(lead.phone, lead.timezone, policy, lead.now)),
        Check("precheck", not policy.prechecks or lead.passed_checks == policy.checks_hash),
    ]
    if standing.number is not None:
        grant = Grant(_NOBODY, lead.id, 0, standing.number.id, 1, 0)
        # Asked as if it were called now.
        case = Case(grant, replace(lead, due_at=min(lead.due_at, lead.now)), standing.number, policy)
        counts = await limits.count(conn, questions([case]))
        await limits.count_more(conn, more_questions([case]), counts)
        answers = Tally(counts, no_account_pace).refusals(case)
        found += [_of(answer.reason.value, answer) for answer in answers] or [Check("limits", True)]
    return found


async def _agents(conn: Connection, standing: Standing, check: AgentCheck) -> Check:
    lead = standing.lead
    if brake := gates.no_agent_brake(lead):
        return _of("agents", brake)
    carrier = standing.number.carrier if standing.number else ""
    if not check.rule.needs_agent(carrier, are_elsewhere=lead.are_agents_elsewhere):
        return Check("agents", True)
    config = (await allocations.merchant_tiers(conn, [lead.merchant_id])).get(lead.merchant_id, "")
    tiers = chain(lead.merchant_id, config)
    missing = _missing_agent(await agents.room(conn, check.slots, tiers), tiers)
    return Check("agents", missing is None, missing)


def _missing_agent(room: AgentRoom, tiers: Sequence[str]) -> str | None:
    """Without numbers: agents are shared, and how many are busy would tell what others do."""
    if room.is_free:
        return None
    if not room.known:
        return (
            "no agent is known. Start one, or where other people's agents answer, set AGENTS=elsewhere, or `agents` of "
            "the merchant or the pool to `elsewhere`"
        )
    if not room.serving:
        return f"no agent is in a tier that its calls reach ({', '.join(tiers)}). Start more, or change TIER_CONFIG"
    if not room.able:
        return "no agent takes calls: those that serve it are silent, draining or not ready"
    return "every agent that its calls reach is busy, or left to callers"


def _of(gate: str, answer: Answer | None) -> Check:
    return Check(gate, True) if answer is None else Check(gate, False, answer.subject, answer.until)


def _channel(standing: Standing) -> Check:
    if standing.number is None:
        return Check("channel", False, "its pool has no number that may dial")
    # How many are in use would tell what others do: a pool may be shared.
    is_free = standing.held < standing.channels
    return Check("channel", is_free, None if is_free else "all channels of its pool are in use")


def _settled(standing: Standing) -> str:
    if standing.status == "PROCESSING":
        return "It is being called now."
    reason = f" ({standing.outcome_reason})" if standing.outcome_reason else ""
    return f"It has ended as {standing.outcome}{reason}."


_SENTENCES = {
    "due": "It is not due yet.",
    "control": "Calls are stopped",
    "event_dispatch": "This platform does not call it",
    "attempts": "All of its attempts are used up",
    "do_not_call": "The person must not be called",
    "agents": "It waits for an agent",
    "policy": "Nobody is called under its rules",
    "destination": "Its number may not be called: the destination is not allowed.",
    "window": "Its calling window is closed",
    "precheck": "Its pre-check has not been asked or has not passed lately.",
    "limit": "A limit has been reached",
    "spend": "The money of the day is spent",
    "pace": "Calls are started more slowly than it would like",
    "person": "The person is being called already",
    "channel": "It waits for a channel",
}


def _sentence(closed: Sequence[Check]) -> str:
    if not closed:
        return "Nothing stands in its way: it is called as soon as it is its turn."
    first = closed[0]
    words = _SENTENCES.get(first.gate, f"It is held up by {first.gate}")
    if words.endswith("."):
        return words
    # Subjects are names, such as `calls_per_person`; a detail of several words is a sentence already.
    detail = first.detail and (first.detail if " " in first.detail else first.detail.replace("_", " "))
    return f"{words}: {detail}." if detail else f"{words}."
