"""Gates: every reason not to call somebody now, each a pure function with a typed answer. The first no counts.

They judge what the intent has read under its locks, so nothing changes between the question and the dial. What has to
be counted comes later, in `gates_limits`.
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

# Whoever stopped something may start it again at any moment; the match knows when.
AGAIN = timedelta(seconds=1)
UNREADABLE_POLICY = timedelta(seconds=60)


class Case(Value, frozen=True):
    """One grant, and everything that is known of it."""

    grant: Grant
    lead: LockedLead
    number: LockedNumber | None
    policy: Effective | None


def never_stopped(
    reseller_id: str, merchant_id: str, campaign_id: UUID | None, number_id: UUID, carrier: str
) -> str | None:
    return None


def judge(case: Case, stopped: Stopped) -> GateRefusal | None:
    """None: nothing speaks against it, as far as it need not be counted."""
    if case.number is None or case.number.status != "active":
        return _channel(case, "number_not_active")
    if (case.number.carrier, case.number.account) != (case.lead.carrier, case.lead.account):
        return _channel(case, "number_changed")  # the account that is locked is not the one it has now
    if case.number.pool_id not in (case.lead.pool_id, case.lead.overflow_pool_id):
        return _channel(case, "number_changed")  # it may be another tenant's by now
    if case.grant.channel_no > case.number.max_channels:
        return _channel(case, "above_maximum")
    if case.policy is None:
        return GateRefusal(
            RefusalReason.PAUSED, Blocks.FLOW, case.lead.now + UNREADABLE_POLICY, "policy_unreadable"
        )
    return (
        _control(case.lead, case.number, stopped)
        or no_agent_brake(case.lead)
        or _wanted(case.lead)
        or _expired(case.lead)
        or _listed(case.lead)
        or _destination(case.lead, case.policy)
        or window(case.lead.phone, case.lead.timezone, case.policy, case.lead.earliest_at)
        or _precheck(case.lead, case.policy)
    )


def _channel(case: Case, subject: str) -> GateRefusal:
    """Nobody owns the channel: the number itself is not what the match believes."""
    return GateRefusal(RefusalReason.CHANNEL, Blocks.NUMBER, case.lead.now + AGAIN, subject)


def _control(lead: LockedLead, number: LockedNumber, stopped: Stopped) -> GateRefusal | None:
    """What Postgres says comes first: a process's own view may be half a second late."""
    why = lead.halted or stopped(
        lead.reseller_id, lead.merchant_id, lead.campaign_id, number.id, number.carrier
    )
    return GateRefusal(RefusalReason.PAUSED, Blocks.LEAD, lead.now + AGAIN, why) if why is not None else None


def no_agent_brake(lead: LockedLead) -> GateRefusal | None:
    """People of this merchant answered and found no agent, again and again: nobody is rung for a while, then one at a
    time until one has its agent."""
    if lead.agents_from is None:
        return None
    return GateRefusal(RefusalReason.AGENTS, Blocks.FLOW, lead.agents_from, "no_agent_brake")


def _wanted(lead: LockedLead) -> GateRefusal | None:
    if lead.attempt_count < lead.max_attempts:
        return None
    finish = Finish(Outcome.CALL_LIMIT_REACHED, "ATTEMPTS_EXHAUSTED")
    return GateRefusal(RefusalReason.ATTEMPTS_EXHAUSTED, finish=finish)


def _expired(lead: LockedLead) -> GateRefusal | None:
    """Its call would leave too late. A loop ends what waits; this is for what it has not come to yet."""
    if lead.expires_at is None or lead.earliest_at < lead.expires_at:
        return None
    return GateRefusal(RefusalReason.EXPIRED, finish=Finish(Outcome.EXPIRED, None))


def _listed(lead: LockedLead) -> GateRefusal | None:
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
