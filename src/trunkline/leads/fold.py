"""The fold: what a call's events add up to. Pure and total.

Events come late, doubled and in any order, so each fact is taken on its own and none is ever revoked: folding the same
events again, or in another order, gives the same facts. The readable part of an event is used, because a missed end
holds a channel for hours; only an event of no known kind is unreadable.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from itertools import repeat
from typing import Any

from trunkline.model import CallFacts, CallReport
from trunkline.moments import read_moment
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
REF_LENGTH_MAX = 2000
FAILED_FOR_US = "failed:"
INT_MAX = 2**31 - 1
# The fields with a recording's address: of Twilio and Exotel, of Plivo, of Vapi.
_RECORDINGS = ("RecordingUrl", "RecordUrl", "recordingUrl")
# Twilio also reports recordings that cannot be fetched: not yet, never, or no longer.
_MISSING_RECORDINGS = frozenset({"in-progress", "processing", "absent", "failed", "deleted"})
# No call was known then: the reason and the time of that are no facts of the call itself.
_WITHOUT_CALL = WRITTEN_OFF | {AttemptState.IN_DOUBT}


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
    # What an agent that the carrier runs reported, and the addresses of recordings.
    report: CallReport | None = None
    recordings: tuple[str, ...] = ()
    # The number of the event in its mailbox.
    seq: int = 0


class UnreadableEvent(Value, frozen=True):
    why: str


def read(payload: object, arrived_at: datetime, seq: int = 0) -> Fact | UnreadableEvent:
    """Take the usable part of an event. An unusable time is replaced by that of the arrival."""
    if not isinstance(payload, dict):
        return UnreadableEvent("it is no JSON object")
    get = payload.get
    kind = get("kind")
    if not isinstance(kind, str) or kind not in _PROVES:
        return UnreadableEvent(f"no event is of kind {str(kind)[:TEXT_LENGTH_MAX]!r}")
    reason, fault = _text(get("reason")), _text(get("fault"))
    if fault and reason != "completed":
        reason = _text(f"{FAILED_FOR_US}{fault}")
    # Carriers send `human`, `machine`, `machine_end_beep`, `fax`, or that they do not know.
    answered_by = str(get("answered_by")).lower()
    is_machine = answered_by.startswith(("machine", "fax", "voicemail"))
    joined, others, report = get("agent_joined"), get("other_ids"), get("report")
    cost, raw, micros, currency = get("cost"), get("raw"), None, None
    if isinstance(cost, dict):
        micros, currency = _count(cost.get("micros"), 2**63 - 1), _text(cost.get("currency"))
    has_cost = micros is not None and currency is not None
    return Fact(
        proves=_PROVES[kind],
        at=_moment(get("at"), arrived_at),
        call_id=_text(get("call_id")),
        other_ids=tuple(filter(None, map(_text, others))) if isinstance(others, list) else (),
        is_comparable=get("is_leg_id") is not True,
        reason=reason,
        duration_s=_count(get("duration_s"), INT_MAX),
        is_machine=True if is_machine else False if answered_by.startswith("human") else None,
        agent_joined=False if kind == "refused" else joined if isinstance(joined, bool) else None,
        stream_began=_STREAM.get(kind),
        cost_micros=micros if has_cost else None,
        cost_currency=currency if has_cost else None,
        report=_report(report) if isinstance(report, dict) else None,
        recordings=_recordings(raw) if isinstance(raw, dict) else (),
        seq=seq,
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
            changes["call_id"] = known.call_id or fact.call_id
            if fact.proves in ATTEMPT_MOVES[known.state]:
                changes["state"] = fact.proves
                if known.state in _WITHOUT_CALL:
                    known = replace(known, ended_at=None, end_reason=None, duration_s=None)
        match fact.proves:
            case AttemptState.RINGING:
                changes["ringing_at"] = known.ringing_at or fact.at
            case AttemptState.ANSWERED:
                changes["answered_at"] = known.answered_at or fact.at
            case AttemptState.ENDED if known.ended_at is None:
                changes |= {"ended_at": fact.at, "end_reason": fact.reason, "duration_s": fact.duration_s}
                changes["answered_at"] = known.answered_at or _must_have_answered_at(fact)
        known = replace(known, **changes) if changes else known
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


def _text(value: Any, length_max: int = TEXT_LENGTH_MAX) -> str | None:
    """None for text that Postgres could not store or index."""
    is_text = isinstance(value, str) and 0 < len(value) <= length_max and value.isprintable()
    return value if is_text else None


def _count(value: Any, count_max: int) -> int | None:
    return value if type(value) is int and 0 <= value <= count_max else None  # True is none


def _recordings(raw: Mapping[str, Any]) -> tuple[str, ...]:
    if str(raw.get("RecordingStatus")) in _MISSING_RECORDINGS:
        return ()
    refs = map(_text, map(raw.get, _RECORDINGS), repeat(REF_LENGTH_MAX))
    return tuple(filter(None, refs))


def _report(payload: Mapping[str, Any]) -> CallReport:
    """Without the values that their columns would refuse."""
    limits = {"disposition": 100, "transcript_ref": REF_LENGTH_MAX, "recording_ref": REF_LENGTH_MAX}
    texts = {
        name: value
        for name, length_max in limits.items()
        if isinstance(value := payload.get(name), str) and 0 < len(value) <= length_max
    }
    return CallReport(
        opt_out=payload.get("opt_out") is True,
        callback_at=read_moment(payload.get("callback_at")),
        data=payload["data"] if isinstance(payload.get("data"), dict) else {},
        **texts,
    )
