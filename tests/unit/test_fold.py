"""The fold of a call's events: total, in any order, and nothing known is taken back."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.leads.policy import after_call
from trunkline.leads.fold import LATER_MAX, Fact, UnreadableEvent, fold, read
from trunkline.model import Budget, CallFacts
from trunkline.states import ATTEMPT_MOVES, AttemptState

NOW = datetime(2025, 1, 1, 12, tzinfo=UTC)
S = AttemptState

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
moments = st.integers(-3600, 1800).map(lambda s: (NOW + timedelta(seconds=s)).isoformat())
kinds = st.sampled_from(
    [
        "initiated",
        "ringing",
        "answered",
        "ended",
        "machine",
        "recording",
        "stream_began",
        "stream_failed",
        "stream_ended",
        "refused",
    ]
)
payloads = st.fixed_dictionaries(
    {"kind": kinds | json_values, "at": moments | json_values},
    optional={"call_id": st.text() | json_values, "reason": json_values, "duration_s": json_values},
)
sane = st.fixed_dictionaries(
    {"kind": kinds, "at": moments, "call_id": st.sampled_from(["CA1", "CA2"])},
    optional={
        "reason": st.sampled_from(["busy", "completed"]),
        "duration_s": st.integers(0, 100),
        "agent_joined": st.booleans(),
        "answered_by": st.sampled_from(["human", "machine_start", "unknown"]),
    },
)
in_two_orders = st.lists(sane, max_size=6).flatmap(
    lambda events: st.tuples(st.just(events), st.permutations(events))
)


def told(*payloads: dict[str, Any]) -> list[Fact]:
    facts = [read(payload, NOW) for payload in payloads]
    return [fact for fact in facts if isinstance(fact, Fact)]


def event(kind: str, seconds: int = 0, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "at": (NOW + timedelta(seconds=seconds)).isoformat(), "call_id": "CA1", **more}


def test_the_fold_of_a_calls_events_yields_its_facts() -> None:
    facts = fold(
        CallFacts(S.DIALING),
        told(
            event("initiated"),
            event("ringing", 1),
            event("answered", 5),
            event("ended", 35, reason="completed", duration_s=30),
        ),
    )
    assert facts == CallFacts(
        state=S.ENDED,
        call_id="CA1",
        ringing_at=NOW + timedelta(seconds=1),
        answered_at=NOW + timedelta(seconds=5),
        ended_at=NOW + timedelta(seconds=35),
        end_reason="completed",
        duration_s=30,
    )


NO_LENGTH, NO_SECONDS = event("ended"), event("ended", duration_s=0)


@given(st.sampled_from(list(AttemptState)), in_two_orders)
@example(S.RINGING, ([NO_LENGTH, NO_SECONDS], [NO_SECONDS, NO_LENGTH]))
def test_the_order_of_events_does_not_matter(
    state: AttemptState, both: tuple[list[dict[str, Any]], list[dict[str, Any]]]
) -> None:
    before = CallFacts(state)
    assert fold(before, told(*both[0])) == fold(before, told(*both[1]))


@given(st.lists(sane, max_size=5))
def test_the_same_events_again_change_nothing(events: list[dict[str, Any]]) -> None:
    once = fold(CallFacts(S.DIALING), told(*events))
    assert fold(once, told(*events)) == once
    assert fold(CallFacts(S.DIALING), told(*events, *events)) == once


@given(st.sampled_from(list(AttemptState)), st.lists(sane, max_size=5), st.lists(sane, max_size=5))
def test_the_fold_takes_no_known_fact_back(
    state: AttemptState, earlier: list[dict[str, Any]], later: list[dict[str, Any]]
) -> None:
    known = fold(CallFacts(state), told(*earlier))
    facts = fold(known, told(*later))
    for name in ("call_id", "ringing_at", "answered_at", "ended_at"):
        assert getattr(known, name) in (None, getattr(facts, name))
    assert facts.state == known.state or facts.state in ATTEMPT_MOVES[known.state] or known.state is S.DIALING
    if known.ended_at is not None:
        assert (facts.end_reason, facts.duration_s) == (known.end_reason, known.duration_s)


@given(json_values | payloads)
def test_every_payload_is_read_or_unreadable(payload: object) -> None:
    match read(payload, NOW):
        case Fact() as fact:
            assert fact.at.tzinfo is not None
            assert abs(fact.at - NOW) <= timedelta(days=7)
            for text in (fact.call_id, fact.reason):
                assert text is None or (0 < len(text) <= 255 and "\x00" not in text)
                assert text is None or text.encode()
            assert fact.duration_s is None or 0 <= fact.duration_s < 2**31
            fold(CallFacts(S.DIALING), [fact])
        case UnreadableEvent(why=why):
            assert why


@given(st.lists(payloads, max_size=5))
def test_every_end_of_a_call_settles_its_lead(events: list[dict[str, Any]]) -> None:
    facts = fold(CallFacts(S.DIALING), told(*events))
    assert after_call(facts.answered_at, facts.end_reason, Budget(1, 3, 0)) is not None


@pytest.mark.parametrize(
    "payload", [None, [], "ended", 7, {}, {"kind": "exploded"}, {"kind": ["ended"]}, {"kind": None}]
)
def test_an_event_of_an_unknown_kind_is_unreadable(payload: object) -> None:
    assert isinstance(read(payload, NOW), UnreadableEvent)


@pytest.mark.parametrize(
    "at",
    [
        None,
        "",
        "soon",
        1735689600,
        "2025-01-01T12:00:00",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
        (NOW + LATER_MAX * 2).isoformat(),
    ],
)
def test_an_end_with_an_impossible_time_ended_when_it_arrived(at: object) -> None:
    """Ignored, it would keep its channel."""
    fact = read({"kind": "ended", "at": at}, NOW)
    assert isinstance(fact, Fact)
    assert fact.at == NOW


def test_details_that_postgres_cannot_store_are_dropped_and_the_end_stays() -> None:
    payload = event("ended", call_id="C" * 3000, reason={"a": 1}, duration_s=2**40)
    fact = read(payload, NOW)
    assert fact == Fact(S.ENDED, NOW)
    assert read(event("ended", call_id="a\x00b", duration_s=True), NOW) == Fact(S.ENDED, NOW)


def test_machine_and_recording_events_do_not_change_the_calls_state() -> None:
    before = CallFacts(S.RINGING, call_id="CA1")
    assert fold(before, told(event("machine"), event("recording"))) == before


@pytest.mark.parametrize(
    ("said", "is_machine"),
    [
        (["human"], False),
        (["machine_end_beep"], True),
        (["fax"], True),
        (["unknown"], None),
        ([7], None),
        (["human", "machine_start"], True),
        (["machine_start", "human"], True),
    ],
)
def test_a_call_was_answered_by_a_machine_if_any_event_says_so(
    said: list[Any], is_machine: bool | None
) -> None:
    events = [event("machine", answered_by=each) for each in said]
    assert fold(CallFacts(S.ANSWERED), told(*events)).is_machine is is_machine


@pytest.mark.parametrize(
    ("said", "agent_joined"), [([True], True), ([True, False], False), ([False, True], False), ([None], None)]
)
def test_a_call_had_no_agent_if_any_event_says_so(said: list[Any], agent_joined: bool | None) -> None:
    events = [event("reported", number, agent_joined=each) for number, each in enumerate(said)]
    assert fold(CallFacts(S.ANSWERED), told(*events)).agent_joined is agent_joined


LOST = [event("ringing", 1), event("ended", 35, reason="completed", duration_s=30)]


def test_a_call_that_ended_with_talk_time_was_answered_without_an_answered_event() -> None:
    facts = fold(CallFacts(S.DIALING), told(*LOST))
    assert facts.answered_at == NOW + timedelta(seconds=5)
    assert fold(facts, told(event("answered", 6))).answered_at == facts.answered_at, "a time once known stays"


@pytest.mark.parametrize(
    ("reason", "duration_s", "is_answered"),
    [("completed", None, True), ("completed", 0, False), ("busy", 30, False), ("no_answer", None, False)],
)
def test_only_a_completed_call_is_answered_without_an_answered_event(
    reason: str, duration_s: int | None, is_answered: bool
) -> None:
    facts = fold(CallFacts(S.RINGING), told(event("ended", 35, reason=reason, duration_s=duration_s)))
    assert (facts.answered_at is not None) is is_answered


@pytest.mark.parametrize(
    ("kinds", "began"),
    [
        (["stream_began"], True),
        (["stream_failed"], False),
        (["stream_failed", "stream_began"], True),
        (["stream_began", "stream_failed"], True),
        (["stream_failed", "stream_ended"], False),
        (["stream_ended"], None),
        (["answered"], None),
    ],
)
def test_a_stream_that_began_stays_begun_after_a_failure(kinds: list[str], began: bool | None) -> None:
    assert fold(CallFacts(S.ANSWERED), told(*map(event, kinds))).stream_began is began


@pytest.mark.parametrize("agent_joined", [True, False])
def test_a_document_event_sets_agent_joined(agent_joined: bool) -> None:
    facts = fold(CallFacts(S.RINGING), told(event("document", agent_joined=agent_joined)))
    assert facts == CallFacts(S.RINGING, agent_joined=agent_joined)


def test_a_refused_event_means_that_no_agent_joined() -> None:
    assert fold(CallFacts(S.ANSWERED), told(event("refused"))).agent_joined is False


def test_an_answered_event_of_external_agents_sets_agent_joined() -> None:
    assert fold(CallFacts(S.RINGING), told(event("answered", agent_joined=True))).agent_joined is True


def test_an_answered_event_without_an_agent_clears_agent_joined() -> None:
    assert fold(CallFacts(S.RINGING), told(event("answered", agent_joined=False))).agent_joined is False
    assert fold(CallFacts(S.RINGING), told(event("answered"))).agent_joined is None
