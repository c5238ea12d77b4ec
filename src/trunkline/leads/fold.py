"""The fold: what a call's events add up to. Pure and total.

Events come late, doubled and in any order, so each fact is taken on its own and none is ever revoked: folding the same
events again, or in another order, gives the same facts. The readable part of an event is used, because a missed end
holds a channel for hours; only an event of no known kind is unreadable.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from trunkline.model import CallFacts
from trunkline.states import ATTEMPT_MOVES, WRITTEN_OFF, AttemptState
from trunkline.value import Value, replace

# The state each kind of event proves, in the order in which they come about.
_PROVES: Mapping[str, AttemptState | None] = {
    "initiated": AttemptState.ACCEPTED,
    "ringing": AttemptState.RINGING,
    "answered": AttemptState.ANSWERED,
    "ended": AttemptState.ENDED,
    "machine": None,
    "recording": None,
    "reported": None,
    # The document that the carrier got for the call; the carrier's report on the stream to the agent; and the agent's
    # own that it refused the stream.
    "document": None,
    "stream_began": None,
    "stream_failed": None,
    # It may follow one that failed, so it proves nothing.
    "stream_ended": None,
    "refused": None,
}
_STREAM = {"stream_began": True, "stream_failed": False}
_ORDER: Mapping[AttemptState | None, int] = {state: n for n, state in enumerate(_PROVES.values())}

# A carrier's clock may be off, and a webhook may be days late; a time outside of this is no time of this call.
EARLIER_MAX = timedelta(days=7)
LATER_MAX = timedelta(hours=1)
TEXT_LENGTH_MAX = 255
FAILED_FOR_US = "failed:"
INT_MAX = 2**31 - 1


class Fact(Value, frozen=True):
    """The content of one event."""

    proves: AttemptState | None
    at: datetime
    call_id: str | None = None
    # Further ids of the same call. Without a comparable id it is unknown to which call the fact belongs.
    other_ids: tuple[str, ...] = ()
    is_comparable: bool = True
    reason: str | None = None
    duration_s: int | None = None
    is_machine: bool | None = None
    agent_joined: bool | None = None
    stream_began: bool | None = None
    cost_micros: int | None = None
    cost_currency: str | None = None


class UnreadableEvent(Value, frozen=True):
    why: str


def read(payload: object, arrived_at: datetime) -> Fact | UnreadableEvent:
    """Take the usable part of an event. An unusable time is replaced by that of the arrival."""
    if not isinstance(payload, dict):
        return UnreadableEvent("it is no JSON object")
    kind = payload.get("kind")
    if not isinstance(kind, str) or kind not in _PROVES:
        return UnreadableEvent(f"no event is of kind {str(kind)[:TEXT_LENGTH_MAX]!r}")
    cost_micros, cost_currency = _cost(payload.get("cost"))
    joined, others = payload.get("agent_joined"), payload.get("other_ids")
    return Fact(
        proves=_PROVES[kind],
        at=_moment(payload.get("at"), arrived_at),
        call_id=_text(payload.get("call_id")),
        other_ids=tuple(filter(None, map(_text, others))) if isinstance(others, list) else (),
        is_comparable=payload.get("is_leg_id") is not True,
        reason=_reason(payload),
        duration_s=_count(payload.get("duration_s")),
        is_machine=_machine(payload.get("answered_by")),
        agent_joined=False if kind == "refused" else joined if isinstance(joined, bool) else None,
        stream_began=_STREAM.get(kind),
        cost_micros=cost_micros,
        cost_currency=cost_currency,
    )


def separate_foreign(call_id: str | None, facts: Collection[Fact]) -> tuple[list[Fact], list[Fact]]:
    """The facts of the attempt's own call, and those of another: a request that was doubled on its way makes two calls
    under one attempt. The call with the known id is its own; else the first that has one."""
    known = call_id
    if not known:
        named = [fact for fact in facts if fact.call_id and fact.is_comparable]
        # Nearly always one id: the order is needed only between two.
        is_one = len({fact.call_id for fact in named}) <= 1
        known = next((fact.call_id for fact in (named if is_one else sorted(named, key=_order))), None)
    own: list[Fact] = []
    foreign: list[Fact] = []
    for fact in facts:
        is_foreign = (
            known and fact.call_id and fact.is_comparable and known not in (fact.call_id, *fact.other_ids)
        )
        (foreign if is_foreign else own).append(fact)
    return own, foreign


def fold(before: CallFacts, facts: Iterable[Fact]) -> CallFacts:
    known = before
    for fact in sorted(facts, key=_order):
        known = _add(known, fact)
    return known


def _order(fact: Fact) -> tuple[object, ...]:
    """A total order, so that the result of two contradicting events does not depend on which of them came first. Of two
    with the same time, the one with more content counts; a duration of 0 s is more than an unknown one."""
    call_id, reason, duration_s = fact.call_id, fact.reason, fact.duration_s
    micros, currency = fact.cost_micros, fact.cost_currency
    # Flat, and each value after whether it is there: None is never compared with a value.
    return (
        _ORDER[fact.proves], fact.at, call_id is None, call_id, reason is None, reason, duration_s is None, duration_s,
        micros is None, micros, currency is None, currency,
    )  # fmt: skip


def without_doubt(facts: CallFacts) -> CallFacts:
    """A call that was in doubt or written off: the reason and the time of that are no facts of the call itself."""
    if facts.state is AttemptState.IN_DOUBT or facts.state in WRITTEN_OFF:
        return replace(facts, ended_at=None, end_reason=None, duration_s=None)
    return facts


def _add(known: CallFacts, fact: Fact) -> CallFacts:
    moves = fact.proves is not None and fact.proves in ATTEMPT_MOVES[known.state]
    if moves:
        known = without_doubt(known)
    changes: dict[str, Any] = {}
    # If reports differ, the one that detected a machine, or missed an agent, counts.
    if fact.is_machine is not None:
        changes["is_machine"] = known.is_machine or fact.is_machine
    if fact.agent_joined is not None:
        changes["agent_joined"] = fact.agent_joined and known.agent_joined is not False
    # A stream that broke had begun before; one that could not be opened may be opened at another pod.
    if fact.stream_began is not None:
        changes["stream_began"] = known.stream_began or fact.stream_began
    if known.carrier_cost_micros is None and fact.cost_micros is not None:
        changes |= {"carrier_cost_micros": fact.cost_micros, "carrier_cost_currency": fact.cost_currency}
    if fact.proves is not None:
        changes |= {"state": fact.proves if moves else known.state, "call_id": known.call_id or fact.call_id}
    match fact.proves:
        case AttemptState.RINGING:
            changes["ringing_at"] = known.ringing_at or fact.at
        case AttemptState.ANSWERED:
            changes["answered_at"] = known.answered_at or fact.at
        case AttemptState.ENDED if known.ended_at is None:
            changes |= {"ended_at": fact.at, "end_reason": fact.reason, "duration_s": fact.duration_s}
            changes["answered_at"] = known.answered_at or _must_have_answered_at(fact)
    return replace(known, **changes) if changes else known


def _must_have_answered_at(end: Fact) -> datetime | None:
    """Of a call without an answer webhook: one that ended `completed` after a talk was answered. Carriers also report
    `completed` with 0 s when a ringing call is hung up."""
    if end.reason != "completed" or end.duration_s == 0:
        return None
    return end.at - min(timedelta(seconds=end.duration_s or 0), EARLIER_MAX)


def _moment(value: Any, arrived_at: datetime) -> datetime:
    try:
        moment = datetime.fromisoformat(value)
        return moment if arrived_at - EARLIER_MAX <= moment <= arrived_at + LATER_MAX else arrived_at
    except (TypeError, ValueError, OverflowError):
        return arrived_at


def _machine(answered_by: Any) -> bool | None:
    """Carriers send `human`, `machine`, `machine_end_beep`, `fax`, or that they do not know."""
    text = answered_by.lower() if isinstance(answered_by, str) else ""
    if text.startswith(("machine", "fax", "voicemail")):
        return True
    return False if text.startswith("human") else None


def _reason(payload: Mapping[Any, Any]) -> str | None:
    """Why a call ended; with the carrier's code, if it failed because of us."""
    reason, fault = _text(payload.get("reason")), _text(payload.get("fault"))
    return _text(f"{FAILED_FOR_US}{fault}") if fault and reason != "completed" else reason


def _text(value: Any) -> str | None:
    """None for text that Postgres could not store or index."""
    is_text = isinstance(value, str) and 0 < len(value) <= TEXT_LENGTH_MAX and value.isprintable()
    return value if is_text else None


def _cost(value: Any) -> tuple[int | None, str | None]:
    """Micros and currency: both or none."""
    if not isinstance(value, dict):
        return None, None
    micros, currency = value.get("micros"), _text(value.get("currency"))
    is_amount = isinstance(micros, int) and not isinstance(micros, bool) and 0 <= micros < 2**63
    return (micros, currency) if is_amount and currency else (None, None)


def _count(value: Any) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= INT_MAX
    return value if is_count else None
