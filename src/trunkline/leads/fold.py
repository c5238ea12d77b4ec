"""The fold: what a call's events add up to. Pure and total.

Events come late, doubled and in any order, so each fact is taken on its own and none is ever taken back: folding the
same events again, or in another order, gives the same facts. An event that cannot be read changes nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from trunkline.model import CallFacts
from trunkline.states import ATTEMPT_MOVES, AttemptState

# The state each kind of event proves.
_PROVES: Mapping[str, AttemptState] = {
    "initiated": AttemptState.ACCEPTED,
    "ringing": AttemptState.RINGING,
    "answered": AttemptState.ANSWERED,
    "ended": AttemptState.ENDED,
}


def fold(before: CallFacts, events: Iterable[Mapping[str, Any]]) -> CallFacts:
    facts = before
    for event in events:
        facts = _add(facts, event)
    return facts


def _add(facts: CallFacts, event: Mapping[str, Any]) -> CallFacts:
    proves = _PROVES.get(str(event.get("kind")))
    at = _moment(event.get("at"))
    if proves is None or at is None:
        return facts
    facts = replace(
        facts, state=_furthest(facts.state, proves), call_id=facts.call_id or event.get("call_id")
    )
    match proves:
        case AttemptState.RINGING:
            return replace(facts, ringing_at=_earliest(facts.ringing_at, at))
        case AttemptState.ANSWERED:
            return replace(facts, answered_at=_earliest(facts.answered_at, at))
        case AttemptState.ENDED if facts.ended_at is None:
            return replace(
                facts, ended_at=at, end_reason=event.get("reason"), duration_s=event.get("duration_s")
            )
    return facts


def _furthest(state: AttemptState, proved: AttemptState) -> AttemptState:
    return proved if proved in ATTEMPT_MOVES[state] else state


def _earliest(known: datetime | None, at: datetime) -> datetime:
    return at if known is None else min(known, at)


def _moment(value: Any) -> datetime | None:
    """Events without a time of their own carry the time of their arrival; anything else is unreadable."""
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return moment if moment.tzinfo else None
