"""Why is this lead not called? Evaluates everything that could refuse it, for a person who wants to know now.

First what prevents a grant: stops, the rollout, a missing dialer, its due time, its numbers. Then the last refusal of
an intent, which is what really happened; then every gate of the intent, evaluated as the intent would. Nothing is
locked and nothing is written: the answer may be out of date when it is read, and never decides anything.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias
from uuid import UUID

from trunkline.control.flags import EVENT_DISPATCH, decide
from trunkline.control.waits import Includes
from trunkline.dispatch import gates
from trunkline.dispatch.cooldowns import Cooling
from trunkline.dispatch.gates import (
    AGENTS_ELSEWHERE,
    AccountPace,
    AgentRule,
    CountedLimits,
    case_of,
    conditional_questions,
    questions,
)
from trunkline.dispatch.overdialling import Overdialled
from trunkline.dispatch.policy_cache import UNREADABLE, Policies, layers_of
from trunkline.dispatch.why_words import (
    check_from_decision,
    deferred_by,
    gate_of,
    in_words,
    ranked,
    refusing,
    sentence,
)
from trunkline.leads.calling_policy import Effective
from trunkline.leads.zones import region_of
from trunkline.model import Grant, Refusal, RefusalReason
from trunkline.schema.flags import Flag
from trunkline.schema.leads import Decision, GateCheck, Why
from trunkline.settings.tiers import chain
from trunkline.store import agents, allocations, cooldowns, decisions, dispatch, flags, policy, presence
from trunkline.store.agents import AgentCapacity, SlotRule
from trunkline.store.database import Connection
from trunkline.store.decisions import Standing, StopOfLead
from trunkline.store.dispatch import LockedLead
from trunkline.store.policy import StoredPolicy
from trunkline.store.tenants import Tenant
from trunkline.value import replace

_NO_ATTEMPT = UUID(int=0)
_LEVELS = ("platform", "reseller", "merchant", "campaign")
_NUMBER_SCOPES = ("number", "carrier")
# A process without a heartbeat for this long does not dial.
DIALER_SILENT_S = 20.0

# The state of Valkey's projection, and the stop that the match applies to this lead, as it was configured.
Projection: TypeAlias = Literal["whole", "lost", "away"]
ProbeProjection = Callable[[str, str, UUID | None], Awaitable[tuple[Projection, str | None]]]

# The fields of calling policies that a gate, or a subject of its refusals, depends on.
_POLICY_FIELDS = {
    "window": ("windows", "packs"),
    "destination": ("destinations",),
    "precheck": ("prechecks",),
    "calls_per_person": ("calls_per_person",),
    "person_limits": ("person_limits", "packs"),
    "recent_contact": ("recent_contact",),
    "attempts_per_day": ("attempts_per_day",),
    "spend_per_day": ("spend_per_day_micros",),
    "campaign_concurrency": ("max_concurrent",),
    "campaign": ("starts_per_s",),
    "abandon_max": ("abandon_max",),
}
_SET_ELSEWHERE = {
    "merchant_concurrency": "the merchant's `max_concurrent`",
    "account": "the account's `starts_per_s`, or its carrier's request to slow down",
    "number": "the number's `starts_per_s`",
}


async def _assume_whole(
    reseller_id: str, merchant_id: str, campaign_id: UUID | None
) -> tuple[Projection, str | None]:
    return "whole", None


@dataclass(frozen=True, slots=True)
class DispatchView:
    """The inputs of a dialer other than Postgres, as far as the answering process has them."""

    agents: AgentRule = AGENTS_ELSEWHERE
    # How agents of ours are counted.
    slots: SlotRule = field(default_factory=SlotRule)
    # Whose leads this platform calls. None: by the flags in Postgres.
    includes: Includes | None = None
    # Whether a flag service decides whom this platform calls, and not the flags of the API.
    has_flag_service: bool = False
    account_pace: AccountPace = lambda carrier, account: None
    projection: ProbeProjection = _assume_whole
    looks_for_dialers: bool = False


DEFAULT_VIEW = DispatchView()


async def why(
    conn: Connection, policies: Policies, tenant: Tenant, lead_id: UUID, view: DispatchView = DEFAULT_VIEW
) -> Why | None:
    """None if the tenant has no such lead."""
    standing = await decisions.standing(conn, tenant, lead_id)
    if standing is None:
        return None
    history = list(await decisions.history(conn, lead_id))
    if standing.status != "BACKLOG":
        reason = f" ({standing.outcome_reason})" if standing.outcome_reason else ""
        answer = f"It has ended as {standing.outcome}{reason}."
        if standing.status == "PROCESSING":
            answer = "It is being called now."
        return Why(lead_id, standing.status, answer, None, None, [], history)
    level = "merchant" if tenant.merchant_id else "reseller" if tenant.reseller_id else "platform"
    checks = await _Explainer(conn, policies, level, standing, history, view).checks()
    closed = ranked(checks, refusing(history, standing.lead.now))
    # A recent refusal of an intent is listed even if the same gate is open by now.
    checks += [check for check in closed if check not in checks]
    next_at = max((check.until for check in closed if check.until), default=None)
    refused_by = closed[0].gate if closed else None
    return Why(lead_id, standing.status, sentence(closed), refused_by, next_at, checks, history)


@dataclass(frozen=True, slots=True)
class _Explainer:
    """One question about one lead, asked by a tenant of this level."""

    _conn: Connection
    _policies: Policies
    _level: str
    _standing: Standing
    _history: Sequence[Decision]
    _view: DispatchView

    @property
    def _lead(self) -> LockedLead:
        return self._standing.lead

    async def checks(self) -> list[GateCheck]:
        lead = self._lead
        (rules,) = await self._policies.of(self._conn, [lead])
        stated = await policy.read(
            self._conn, layers_of(lead.reseller_id, lead.merchant_id, lead.campaign_id)
        )
        stops = await decisions.stops(self._conn, lead)
        projection, match_stop = await self._view.projection(
            lead.reseller_id, lead.merchant_id, lead.campaign_id
        )
        is_expired = lead.expires_at is not None and max(lead.now, lead.due_at) >= lead.expires_at
        is_free = self._standing.free > 0 or self._standing.usable == 0
        before = [self._stopped("control", stop) for stop in stops if stop.scope not in _NUMBER_SCOPES]
        before = [*(before or [GateCheck("control", True)]), await self._rollout()]
        if self._view.looks_for_dialers:
            dials = bool((await presence.alive(self._conn, DIALER_SILENT_S)).get("dispatcher"))
            advice = None if dials else "start one with the role `dispatcher`"
            before.append(GateCheck("dialers", dials, advice))
        if match_stop is not None and all(check.open for check in before):
            # The match applies a stop that this process cannot explain: another process configured it.
            detail = match_stop if self._level == "platform" else None
            before.append(GateCheck("control", False, detail, set_by="the platform"))
        return [
            *before,
            self._due(),
            *self._numbers([stop for stop in stops if stop.scope in _NUMBER_SCOPES]),
            *await self._cooldowns(),
            GateCheck(
                "attempts",
                lead.attempt_count < lead.max_attempts,
                f"{lead.attempt_count} of {lead.max_attempts} used",
            ),
            GateCheck("expired", not is_expired, "it was due earlier" if is_expired else None),
            self._do_not_call(),
            *await self._policy_checks(rules, stated),
            await self._agents(rules),
            # Of two calls from one number to one person the second waits.
            GateCheck("person", self._standing.unpaired > 0 or self._standing.usable == 0),
            # The number in use would show what other tenants do: a pool may be shared.
            GateCheck("channel", is_free, None if is_free else "all channels of its pool are in use"),
            *await self._projection(projection),
        ]

    def _stopped(self, gate: str, stop: StopOfLead) -> GateCheck:
        """The reason that a level above the asking tenant wrote for a stop is hidden; that there is a stop is not."""
        if self._is_above(stop.set_by):
            return GateCheck(gate, False, stop.scope, stop.ends_at, f"the {stop.set_by}")
        return GateCheck(gate, False, f"{stop.scope}: {stop.reason}", stop.ends_at, stop.changed_by)

    def _is_above(self, level: str) -> bool:
        return _LEVELS.index(level) < _LEVELS.index(self._level)

    async def _rollout(self) -> GateCheck:
        """By the flag service, or by the flag as it is set."""
        lead = self._lead
        rows = [flag for flag in await flags.list_flags(self._conn) if flag.name == EVENT_DISPATCH.name]
        includes = self._view.includes or partial(_by_flags, rows)
        if includes(lead.reseller_id, lead.merchant_id):
            if not self._standing.is_cut_over:
                return GateCheck("event_dispatch", True)
            # Leads that were due before their merchant was turned on belong to another system: no intent takes them.
            detail = (
                "it was due before event_dispatch was turned on for its merchant, so another system has called it; it "
                "ends as ABORTED"
            )
            return GateCheck("event_dispatch", False, detail)
        detail = "another system calls its leads"
        if self._view.has_flag_service:
            detail += ", says the flag service (FEATURE_FLAG_PROVIDER)"
            return GateCheck("event_dispatch", False, detail)
        if not rows or self._level != "platform":
            return GateCheck("event_dispatch", False, detail, set_by="the platform")
        detail += f" (flag event_dispatch: {rows[0].reason})"
        return GateCheck("event_dispatch", False, detail, set_by=rows[0].changed_by)

    def _due(self) -> GateCheck:
        """With the refusal that deferred it, if an intent did: a limit, a window, a pre-check."""
        lead = self._lead
        if lead.due_at <= lead.now:
            return GateCheck("due", True, until=lead.due_at)
        by = deferred_by(self._history, lead.due_at)
        if by is not None:
            detail = (
                f"deferred by the gate {gate_of(by.reason, by.subject)} ({check_from_decision(by).detail})"
            )
            return GateCheck("due", False, detail, lead.due_at)
        has_been_called = lead.attempt_count > 0 or lead.no_agent_count > 0
        return GateCheck("due", False, "its next attempt is later" if has_been_called else None, lead.due_at)

    def _numbers(self, stops: Sequence[StopOfLead]) -> Iterator[GateCheck]:
        if self._standing.numbers == 0:
            yield GateCheck("number", False, "its pool has no number that is active and has channels")
        elif self._standing.usable == 0:
            for stop in stops:
                yield self._stopped("number", stop)
        else:
            yield GateCheck("number", True)

    async def _cooldowns(self) -> list[GateCheck]:
        """What its carrier refuses because of us. A tenant does not see which account: it may be the platform's."""
        number = self._standing.number
        if number is None:
            return []
        active = await cooldowns.active(
            self._conn, (number.carrier, number.account), number.id, region_of(self._lead.phone) or ""
        )
        checks = []
        for held in active:
            words = in_words("cooldown", held.subject.scope) or ""
            if self._level == "platform":
                cause = f" ({held.why})" if held.why else ""
                words = f"{words}: {held.subject.name} refused with {held.code}{cause}"
            since = f"{held.since:%Y-%m-%d %H:%M:%S} UTC"
            checks.append(GateCheck("cooldown", False, f"{words}, since {since}", held.until))
        return checks or [GateCheck("cooldown", True)]

    def _do_not_call(self) -> GateCheck:
        lead, standing = self._lead, self._standing
        if lead.listed_by is None:
            return GateCheck("do_not_call", True)
        detail = f"on the list of the {lead.listed_by}"
        if self._is_above(lead.listed_by):
            return GateCheck("do_not_call", False, detail, standing.listed_until, f"the {lead.listed_by}")
        detail += f" ({standing.listed_reason})"
        return GateCheck("do_not_call", False, detail, standing.listed_until, standing.listed_actor)

    async def _policy_checks(self, rules: Effective, stated: Sequence[StoredPolicy]) -> list[GateCheck]:
        if rules is UNREADABLE:
            return [GateCheck("policy", False, "its calling policy cannot be read")]
        lead, number = self._lead, self._standing.number
        may_call = rules.permits(lead.phone)
        passed = not rules.prechecks or lead.passed_checks == rules.checks_hash
        opening, closed = rules.opening(lead.phone, lead.timezone, lead.now), None
        if opening is None or opening.opens_at > lead.now:
            closed = gates.closed_until(opening) if opening else gates.NEVER_OPENS
        checks = [
            GateCheck(
                "destination",
                may_call,
                set_by=None if may_call else self._policies_stating("destination", stated),
            ),
            self._gate_check("window", closed, stated),
            GateCheck(
                "precheck", passed, set_by=None if passed else self._policies_stating("precheck", stated)
            ),
        ]
        if number is not None:
            grant = Grant(_NO_ATTEMPT, lead.id, 0, number.id, 1, 0)
            # Judged as if it were called now.
            lead = replace(lead, due_at=min(lead.due_at, lead.now))
            case = replace(case_of(grant, lead, rules), number=number)
            counts = await dispatch.count(self._conn, questions([case]))
            if conditional := conditional_questions([case]):
                await dispatch.count_conditional(self._conn, conditional, counts)
            refusals = CountedLimits(
                counts, self._view.account_pace, Cooling(counts), AGENTS_ELSEWHERE, Overdialled()
            ).refusals(case)
            # `_cooldowns` reports cooldowns, with their cause.
            others = [refusal for refusal in refusals if refusal.reason is not RefusalReason.COOLDOWN]
            checks += [self._gate_check(refusal.reason.value, refusal, stated) for refusal in others]
            checks += [] if refusals else [GateCheck("limits", True)]
        return checks

    def _gate_check(self, gate: str, refusal: Refusal | None, stated: Sequence[StoredPolicy]) -> GateCheck:
        if refusal is None:
            return GateCheck(gate, True)
        policies = self._policies_stating(
            refusal.subject if refusal.subject in _POLICY_FIELDS else gate, stated
        )
        by = _SET_ELSEWHERE.get(refusal.subject or "") or policies
        return GateCheck(gate, False, in_words(gate, refusal.subject), refusal.until, by)

    def _policies_stating(self, subject: str, stated: Sequence[StoredPolicy]) -> str | None:
        """The layers that state the field; with the author's name where the layer is the tenant's own or below."""
        fields = _POLICY_FIELDS.get(subject, ())
        unstated: tuple[Any, ...] = (None, [], {}, ())
        stating = [row for row in stated if any(row.policy.get(name) not in unstated for name in fields)]
        if not stating:
            return "the platform's default" if fields else None
        return " and ".join(
            f"the {row.scope}'s policy" + ("" if self._is_above(row.scope) else f" ({row.updated_by})")
            for row in sorted(stating, key=lambda row: _LEVELS.index(row.scope))
        )

    async def _agents(self, rules: Effective) -> GateCheck:
        lead = self._lead
        if lead.agents_from is not None:
            return GateCheck("agents", False, in_words("agents", gates.NO_AGENT_BRAKE), lead.agents_from)
        if not self._view.agents.needs_agent(lead):
            return GateCheck("agents", True)
        config = (await allocations.merchant_tiers(self._conn, [lead.merchant_id])).get(lead.merchant_id, "")
        tiers = chain(lead.merchant_id, config)
        missing = _missing_agent(await agents.capacity(self._conn, self._view.slots, tiers), tiers)
        if missing and rules.abandon_max_of(lead.phone) > 0 and lead.no_agent_count == 0:
            # It may be dialled without one. Only the intent counts whether the bound allows it, and records a refusal.
            return GateCheck("agents", True, f"{missing}; `abandon_max` allows some calls without one")
        return GateCheck("agents", missing is None, missing)

    async def _projection(self, state: Projection) -> list[GateCheck]:
        """Meanwhile leads are dialled from Postgres, so this alone prevents no call: it comes last."""
        match state:
            case "whole":
                return [GateCheck("projection", True)]
            case "away":
                return [GateCheck("projection", False, "Valkey cannot be reached")]
            case "lost":
                detail = "Valkey has lost its projection, and it is being rebuilt"
                if not (await presence.leadership(self._conn, "control")).is_led:
                    detail = "Valkey has lost its projection, and no process with the role `control` runs to rebuild it"
                return [GateCheck("projection", False, detail)]


def _by_flags(rows: Sequence[Flag], reseller_id: str, merchant_id: str) -> bool:
    return all(
        decide(flag, reseller_id=reseller_id, merchant_id=merchant_id, key=merchant_id)[0] for flag in rows
    )


def _missing_agent(capacity: AgentCapacity, tiers: Sequence[str]) -> str | None:
    """Without numbers: agents are shared, and how many are busy would show what other tenants do."""
    if capacity.is_free:
        return None
    if not capacity.known:
        return (
            "no agent is registered. Start one, or for external agents set AGENTS=elsewhere, or `agents` of "
            "the merchant or the pool to `elsewhere`"
        )
    if not capacity.serving:
        return f"no agent is in a tier that its calls reach ({', '.join(tiers)}). Start more, or change TIER_CONFIG"
    if not capacity.able:
        return "no agent takes calls: those that serve it are silent, draining or not ready"
    return "every agent that can take its calls is busy, or in the inbound reserve"
