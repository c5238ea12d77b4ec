"""Gates: every reason not to call a lead now, each a pure function with a typed result. The first refusal counts.

They judge what the intent has read under its locks, so nothing changes between the judgement and the dial. Limits that
have to be counted come later, in `gates_limits`.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from uuid import UUID

from trunkline.dispatch.refusals import Blocks, GateRefusal, RefusalReason
from trunkline.leads.calling_policy import Effective
from trunkline.model import Finish, Grant, Outcome
from trunkline.store.dispatch import LockedLead, LockedNumber
from trunkline.value import Value

# reseller, merchant, campaign, number, carrier: why calls of these are stopped, or None.
Stopped = Callable[[str, str, UUID | None, UUID, str], str | None]

# A stop may be lifted at any time, so the match retries after this.
RETRY_AFTER = timedelta(seconds=1)
UNREADABLE_POLICY = timedelta(seconds=60)
# The subject of a refusal because calls of this merchant found no agent, which has a time of its own.
NO_AGENT_BRAKE = "no_agent_brake"


class Case(Value, frozen=True):
    """One grant, and what the intent has read for it."""

    grant: Grant
    lead: LockedLead
    number: LockedNumber | None
    policy: Effective | None


def never_stopped(
    reseller_id: str, merchant_id: str, campaign_id: UUID | None, number_id: UUID, carrier: str
) -> str | None:
    return None


def judge(case: Case, stopped: Stopped) -> GateRefusal | None:
    """None: no gate refuses, apart from those that count."""
    if case.number is None or case.number.status != "active":
        return _channel(case, "number_not_active")
    if (case.number.carrier, case.number.account) != (case.lead.carrier, case.lead.account):
        return _channel(
            case, "number_changed"
        )  # the intent has locked the account that the number had before
    if case.number.pool_id not in (case.lead.pool_id, case.lead.overflow_pool_id):
        return _channel(case, "number_changed")  # the number may belong to another tenant by now
    if case.grant.channel_no > case.number.max_channels:
        return _channel(case, "above_maximum")
    if case.policy is None:
        return GateRefusal(
            RefusalReason.PAUSED, Blocks.FLOW, case.lead.now + UNREADABLE_POLICY, "policy_unreadable"
        )
    return (
        _control(case.lead, case.number, stopped)
        or no_agent_brake(case.lead)
        or _attempts_exhausted(case.lead)
        or _expired(case.lead)
        or _on_do_not_call_list(case.lead)
        or _destination(case.lead, case.policy)
        or window(case.lead.phone, case.lead.timezone, case.policy, case.lead.earliest_at)
        or _precheck(case.lead, case.policy)
    )


def _channel(case: Case, subject: str) -> GateRefusal:
    """No attempt owns the channel: the number itself is not what the match assumes."""
    return GateRefusal(RefusalReason.CHANNEL, Blocks.NUMBER, case.lead.now + RETRY_AFTER, subject)


def _control(lead: LockedLead, number: LockedNumber, stopped: Stopped) -> GateRefusal | None:
    """Postgres comes first: a process's own view of the stops may be 500 ms late."""
    reason = lead.halted or stopped(
        lead.reseller_id, lead.merchant_id, lead.campaign_id, number.id, number.carrier
    )
    return (
        GateRefusal(RefusalReason.PAUSED, Blocks.LEAD, lead.now + RETRY_AFTER, reason)
        if reason is not None
        else None
    )


def no_agent_brake(lead: LockedLead) -> GateRefusal | None:
    """Calls of this merchant were answered and found no agent, again and again: no lead is dialled for a while, then
    one at a time until a call has its agent."""
    if lead.agents_from is None:
        return None
    return GateRefusal(RefusalReason.AGENTS, Blocks.FLOW, lead.agents_from, NO_AGENT_BRAKE)


def _attempts_exhausted(lead: LockedLead) -> GateRefusal | None:
    if lead.attempt_count < lead.max_attempts:
        return None
    finish = Finish(Outcome.CALL_LIMIT_REACHED, "ATTEMPTS_EXHAUSTED")
    return GateRefusal(RefusalReason.ATTEMPTS_EXHAUSTED, finish=finish)


def _expired(lead: LockedLead) -> GateRefusal | None:
    """The call would leave too late. The loop `LapsedLeads` ends waiting leads; this gate catches those before its
    turn."""
    if lead.expires_at is None or lead.earliest_at < lead.expires_at:
        return None
    return GateRefusal(RefusalReason.EXPIRED, finish=Finish(Outcome.EXPIRED, None))


def _on_do_not_call_list(lead: LockedLead) -> GateRefusal | None:
    if lead.listed_by is None:
        return None
    finish = Finish(Outcome.BLACKLISTED, f"{lead.listed_by.upper()}_LIST")
    return GateRefusal(RefusalReason.BLACKLISTED, subject=lead.listed_by, finish=finish)


def _destination(lead: LockedLead, policy: Effective) -> GateRefusal | None:
    if policy.permits(lead.phone):
        return None
    return GateRefusal(
        RefusalReason.DESTINATION, finish=Finish(Outcome.INVALID_PHONE, "DESTINATION_NOT_ALLOWED")
    )


def window(phone: str, zone: str | None, policy: Effective, now: datetime) -> GateRefusal | None:
    """A closed window gives the lead a new due time; one that never opens ends it."""
    opening = policy.opening(phone, zone, now)
    if opening is None:
        return never_opens()
    if opening.opens_at <= now:
        return None
    return GateRefusal(
        RefusalReason.WINDOW, until=opening.opens_at, due_at=opening.opens_at, closes_at=opening.closes_at
    )


def never_opens() -> GateRefusal:
    return GateRefusal(
        RefusalReason.WINDOW, subject="never_opens", finish=Finish(Outcome.NO_CONFIG, "WINDOW_NEVER_OPENS")
    )


def _precheck(lead: LockedLead, policy: Effective) -> GateRefusal | None:
    if not policy.prechecks or lead.passed_checks == policy.checks_hash:
        return None
    return GateRefusal(RefusalReason.PRECHECK, subject="needed")
