"""A lead's timeline is in true order, whatever the two clocks say and however webhooks overtook each other."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from trunkline.console.lead import story
from trunkline.leads.timeline import in_order
from trunkline.store.leads import StoredTimelineEvent

NOON = datetime(2030, 1, 7, 12, tzinfo=UTC)
FIRST, SECOND = UUID(int=1), UUID(int=2)
LIFE = ("intended", "accepted", "ringing", "answered", "ended")


def happening(
    what: str, seconds: float, attempt: UUID | None = None, source: str = "lead", clock: str = "ours"
) -> StoredTimelineEvent:
    at = NOON + timedelta(seconds=seconds)
    ordinal = None if attempt is None else attempt.int
    return StoredTimelineEvent(at, source, what, attempt, None, None, {}, clock, None, ordinal)


def step(what: str, seconds: float, attempt: UUID = FIRST, clock: str = "ours") -> StoredTimelineEvent:
    source = "attempt" if what in ("intended", "accepted") else "carrier"
    return happening(what, seconds, attempt, source, clock)


def told(events: list[StoredTimelineEvent]) -> list[str]:
    return [each.what for each in in_order(events)]


def test_the_timeline_puts_steps_by_the_carriers_clock_after_the_request() -> None:
    """Its events are deleted, and what is left of them is the carrier's clock: earlier than ours."""
    seen = [
        happening("created", 0.1),
        step("intended", 0.9),
        step("accepted", 1.2),
        *(step(what, 0, clock="carrier") for what in ("ended", "ringing", "answered")),
        happening("finished", 3.5),
    ]
    assert told(seen) == ["created", *LIFE, "finished"]


@given(st.permutations(range(5)), st.permutations(range(5)))
def test_the_timeline_orders_reordered_webhooks_by_the_steps_of_a_call(
    heard: list[int], listed: list[int]
) -> None:
    """Each arrives at another moment, yet an attempt has one order of steps."""
    steps = [step(what, 0 if what == "intended" else 1 + heard[n]) for n, what in enumerate(LIFE)]
    seen = [happening("created", -1), *(steps[n] for n in listed), happening("finished", 9)]
    assert told(seen) == ["created", *LIFE, "finished"]


@given(st.floats(-100, 100))
def test_the_timeline_keeps_the_order_of_attempts_when_the_clock_goes_back(jump: float) -> None:
    seen = [step(what, n) for n, what in enumerate(LIFE)]
    seen += [step(what, 10 + jump + n, SECOND) for n, what in enumerate(LIFE)]
    assert [each.attempt_id for each in in_order(seen)] == [FIRST] * 5 + [SECOND] * 5


def test_a_late_step_of_a_call_does_not_delay_the_next_call_in_the_timeline() -> None:
    seen = [
        *(step(what, n) for n, what in enumerate(LIFE)),
        step("recording", 500),
        *(step(what, 100 + n, SECOND) for n, what in enumerate(LIFE)),
        happening("finished", 200),
    ]
    assert told(seen) == [*LIFE, *LIFE, "finished", "recording"]


def test_an_event_during_a_call_stands_within_it_in_the_timeline() -> None:
    seen = [
        happening("created", -1),
        *(step(what, 10 * n) for n, what in enumerate(LIFE)),
        happening("lead.cancel_requested", 35, source="audit"),
        happening("finished", 41),
    ]
    ordered = in_order(seen)
    assert [each.what for each in ordered][-3:] == ["lead.cancel_requested", "ended", "finished"]
    lead: dict[str, Any] = {
        "attempts": [{"id": FIRST}],
        "timeline": [{"attempt_id": each.attempt_id, "what": each.what} for each in ordered],
    }
    before, call, after = story(lead)
    assert [each["what"] for each in before.events] == ["created"]
    assert call.no == 1
    assert [each["what"] for each in call.events] == [*LIFE[:4], "lead.cancel_requested", "ended"]
    assert [each["what"] for each in after.events] == ["finished"]
