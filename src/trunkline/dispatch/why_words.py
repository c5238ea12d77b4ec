"""`why` in words. Pure: from the closed gates to the one sentence that a person reads first."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from trunkline.model import RefusalReason
from trunkline.schema.leads import Decision, GateCheck

# The gate under which a person finds an intent's refusal. The others have the reason's own name.
_GATES = {
    RefusalReason.PAUSED: "control",
    RefusalReason.ATTEMPTS_EXHAUSTED: "attempts",
    RefusalReason.BLACKLISTED: "do_not_call",
    RefusalReason.NOT_DUE: "due",
    RefusalReason.STALE_GRANT: "error",
    RefusalReason.CONTENDED: "error",
    RefusalReason.LEAD: "error",
}
# The causes of a pause that are gates of their own.
_PAUSED_BY = {"policy_unreadable": "policy", "event_dispatch": "event_dispatch"}
# The match grants nothing while one of these is closed, so an intent's earlier refusal does not matter.
_BEFORE_A_GRANT = ("control", "event_dispatch", "dialers", "due", "number")
# A refusal that repeats every second is at most this old, and one that parks its flow a minute.
REPEATED = timedelta(seconds=3)
PARKED = timedelta(seconds=65)

_SENTENCES = {
    "due": "It is not due yet",
    "control": "Calls are stopped",
    "event_dispatch": "This platform does not call it",
    "dialers": "No dialer is running",
    "number": "No number may dial it",
    "cooldown": "The carrier refuses calls",
    "expired": "It has expired, and ends",
    "attempts": "All of its attempts are used up",
    "do_not_call": "The person must not be called",
    "agents": "It waits for an agent",
    "policy": "Its calling policy allows no calls",
    "destination": "Its number may not be called: the destination is not allowed",
    "window": "Its calling window is closed",
    "precheck": "Its pre-check has not run or has not passed recently",
    "limit": "A limit has been reached",
    "spend": "The daily spending limit has been reached",
    "pace": "A pace limit delays it",
    "person": "The person is being called already",
    "channel": "It waits for a channel",
    "projection": "Calls are placed from Postgres, at a reduced rate",
    "error": "The last attempt to start its call failed",
}
_SUBJECTS = {
    "no_agent_brake": "answered calls of this merchant had no agent, so the no-agent brake stops its dials for a while",
    "no_agent_free": "every agent that can take its calls is busy, or in the inbound reserve",
    "agents_for_ringing_calls": "the free agents are needed for calls that are ringing",
    "abandon_max": "one more call without a reserved agent would exceed `abandon_max`",
    "slot_taken": "another call took the proposed agent",
    "resuming": "the pace ramps up after a stop",
    "event_dispatch": "the flag event_dispatch leaves it to another system",
    "unread": "the dialer has not read the controls yet",
    "database_went_back": "Postgres is at an earlier state than the dialer has seen",
    "policy_unreadable": "its calling policy cannot be read",
    "number_not_active": "the number is not active",
    "number_changed": "the number has been changed",
    "above_maximum": "the number has fewer channels now",
    "number_full": "the number has more calls than its maximum",
    "same_lead": "it is being called already",
    "being_changed": "another transaction was changing it",
    "account": "the pace of the carrier account",
    "campaign": "the pace of the campaign",
    "needed": "the dialer runs it when the lead's turn comes",
    "never_opens": "it never opens",
}
# The same subject at two gates: a number's pace, or a number that a carrier refuses.
_BY_GATE = {
    ("pace", "number"): "the pace of the number",
    ("cooldown", "account"): "the account cools down, and is tried with one call at a time",
    ("cooldown", "number"): "the number cools down, and is tried with one call at a time",
    ("cooldown", "process"): "a dialer cannot reach the carrier",
    ("cooldown", "country"): "the account cools down for this country, and is tried with one call at a time",
}


def gate_of(reason: str, subject: str | None = None) -> str:
    """The gate that an intent's refusal belongs to."""
    if reason == RefusalReason.PAUSED and subject in _PAUSED_BY:
        return _PAUSED_BY[subject]
    return _GATES.get(RefusalReason(reason), reason) if reason in set(RefusalReason) else reason


def in_words(gate: str, subject: str | None) -> str | None:
    """An intent's refusal, for people. Subjects that are names, such as `calls_per_person`, read as words."""
    if not subject:
        return None
    return _BY_GATE.get((gate, subject)) or _SUBJECTS.get(subject) or subject.replace("_", " ")


def check_from_decision(decision: Decision, gate: str | None = None) -> GateCheck:
    gate = gate or gate_of(decision.reason, decision.subject)
    words = in_words(gate_of(decision.reason, decision.subject), decision.subject)
    times = f"{decision.times} times" if decision.times > 1 else "once"
    return GateCheck(
        gate, False, f"{words}, refused {times}" if words else f"refused {times}", decision.until
    )


def deferred_by(history: Iterable[Decision], due_at: datetime) -> Decision | None:
    """The refusal that gave the lead its due time, if any. One that broke its own intent has no time of its own."""
    decisions = sorted(history, key=lambda each: each.last_at, reverse=True)
    if decisions and decisions[0].reason == RefusalReason.ERROR:
        return decisions[0]
    return next((each for each in decisions if each.until is not None and each.until == due_at), None)


def refusing(history: Sequence[Decision], now: datetime) -> Decision | None:
    """The last refusal, while it still holds or would have been repeated by now."""
    if not history:
        return None
    last = max(history, key=lambda each: each.last_at)
    is_young = last.last_at > now - PARKED
    return last if is_young and (last.until is None or last.until > now - REPEATED) else None


def ranked(checks: Sequence[GateCheck], refusal: Decision | None) -> list[GateCheck]:
    """The closed gates, in the order of their effect: those that prevent a grant, then the intent's last refusal, then
    the others."""
    closed = [check for check in checks if not check.open]
    before = [check for check in closed if check.gate in _BEFORE_A_GRANT]
    others = [check for check in closed if check.gate not in _BEFORE_A_GRANT]
    if refusal is None:
        return [*before, *others]
    gate = gate_of(refusal.reason, refusal.subject)
    by_intent = [check for check in closed if check.gate == gate]
    first = by_intent or [check_from_decision(refusal)]
    return [
        *before,
        *(each for each in first if each not in before),
        *(each for each in others if each not in first),
    ]


def sentence(closed: Sequence[GateCheck]) -> str:
    if not closed:
        return "No gate refuses it: a dialer calls it when its turn comes."
    first = closed[0]
    words = _SENTENCES.get(first.gate, f"It is refused by the gate {first.gate}")
    parts = [f"{words}: {first.detail}" if first.detail else words]
    if first.set_by:
        parts.append(f"set by {first.set_by}")
    if first.until:
        parts.append(f"until {first.until.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC")
    return ", ".join(parts) + "."
