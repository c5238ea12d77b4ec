"""The ledger's own arithmetic, since every promise is checked with it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.telephony.simulator.ledger import Dial, DoubleDial, Ledger, double_dials, over_capacity, peaks
from trunkline.testing.clock import ManualClock

instants = st.integers(0, 12).map(float)


def dial(no: int, start: float, end: float | None, to: str = "", from_: str = "N", attempt: str = "") -> Dial:
    return Dial(no, f"C{no}", "AC", attempt or f"a{no}", to or f"p{no}", from_, start, start, ended_at=end)


@st.composite
def dial_lists(draw: st.DrawFn) -> list[Dial]:
    made = []
    for no in range(draw(st.integers(0, 12))):
        start = draw(instants)
        length = draw(st.none() | st.integers(0, 6))
        end = None if length is None else start + length
        number = draw(st.sampled_from(["N", "M"]))
        made.append(
            dial(no, start, end, draw(st.sampled_from("pqr")), number, draw(st.sampled_from("abcdef")))
        )
    return made


def covers(one: Dial, instant: float) -> bool:
    end = math.inf if one.ended_at is None else max(one.ended_at, one.started_at + 0.25)
    return one.started_at <= instant < end


@given(dial_lists())
def test_the_peak_is_the_most_channels_in_use_at_any_instant(dials: list[Dial]) -> None:
    """Compared with counting at a grid finer than any interval."""
    for number, (peak, _) in peaks(dials).items():
        own = [one for one in dials if one.from_ == number]
        counts = [sum(covers(one, step / 8) for one in own) for step in range(8 * 20)]
        assert peak == max(counts)


@given(dial_lists())
def test_a_double_dial_is_found_if_and_only_if_there_is_one(dials: list[Dial]) -> None:
    twice = {one.attempt for one in dials if sum(other.attempt == one.attempt for other in dials) > 1}
    pairs = [(a, b) for a in dials for b in dials if a.no < b.no and (a.to, a.from_) == (b.to, b.from_)]
    meet = any(covers(a, b.started_at) or covers(b, a.started_at) for a, b in pairs)
    found = double_dials(dials)
    assert {one.key for one in found if one.rule == "attempt"} == twice
    assert any(one.rule == "pair" for one in found) == meet


def test_an_end_frees_its_channel_for_a_start_at_the_same_instant() -> None:
    dials = [dial(0, 1.0, 2.0), dial(1, 2.0, 3.0)]
    assert over_capacity(dials, {"N": 1}) == []


def test_a_live_call_holds_its_channel() -> None:
    (over,) = over_capacity([dial(0, 1.0, None), dial(1, 5.0, None)], {"N": 1})
    assert (over.number, over.limit, over.peak, over.at) == ("N", 1, 2, 5.0)


def test_a_number_without_a_limit_is_never_over_capacity() -> None:
    assert over_capacity([dial(0, 1.0, None), dial(1, 1.0, None)], {"M": 1}) == []


def test_one_attempt_dialled_twice_is_named_with_both_calls() -> None:
    dials = [dial(0, 1.0, 2.0, attempt="x"), dial(1, 9.0, 9.5, attempt="x")]
    assert double_dials(dials) == [DoubleDial("attempt", "x", ("C0", "C1"))]


def test_dials_without_an_attempt_are_not_one_attempt() -> None:
    ledger = Ledger()
    for number in "12":
        ledger.dials.append(Dial(0, number, "AC", None, number, "N", ledger.now(), ledger.now()))
    assert ledger.double_dials() == []


def test_instants_do_not_go_back_with_the_wall_clock() -> None:
    clock = ManualClock()
    ledger = Ledger(clock)
    before = ledger.now()
    clock.set_wall(clock.now().replace(year=2000))
    clock.advance(1)
    assert ledger.now() == pytest.approx(before + 1)
