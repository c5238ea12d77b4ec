"""How many calls may ring for fewer free agents: the figures, and what holds for all of them."""

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.leads.abandonment import dials_max
from trunkline.leads import abandonment
from trunkline.leads.abandonment import Ringing, answer_rate, expected_share, may_dial
from trunkline.model import Counted

NOW = datetime(2030, 1, 1, tzinfo=UTC)
RATES = st.floats(0.01, 1.0)


@pytest.mark.parametrize(
    ("rate", "free", "by_probability", "share_then", "by_share"),
    [
        (0.10, 1, 3, 0.097, 1),
        (0.10, 40, 303, 0.003, 369),
        (0.25, 10, 25, 0.007, 30),
        (0.25, 40, 124, 0.002, 150),
    ],
)
def test_dials_max_bounds_the_expected_share_not_the_probability(
    rate: float, free: int, by_probability: int, share_then: float, by_share: int
) -> None:
    assert round(expected_share(Ringing().plus(rate, by_probability), free), 3) == share_then
    assert dials_max(rate, free, 0.03) == by_share


def test_two_calls_for_one_agent_at_25_percent_have_an_expected_share_of_an_eighth() -> None:
    assert expected_share(Ringing().plus(0.25, 2), free=1) == pytest.approx(0.125)
    assert not may_dial(Ringing(1, 0.25), 0.25, free=1, abandon_max=0.03)


@pytest.mark.parametrize(("hits", "trials", "bound"), [(5, 20, 0.46), (25, 100, 0.33), (100, 400, 0.29)])
def test_the_rate_is_the_upper_95_percent_bound(hits: int, trials: int, bound: float) -> None:
    assert round(abandonment.upper_bound(hits, trials), 2) == bound


def test_every_call_is_expected_to_be_answered_until_50_have_ended() -> None:
    assert answer_rate(0, 49) == 1.0
    assert answer_rate(0, 50) < 0.06
    assert answer_rate(50, 50) == 1.0


def test_without_a_maximum_as_many_ring_as_agents_are_free() -> None:
    assert dials_max(0.2, 7, abandon_max=0.0) == 7
    assert dials_max(1.0, 7, abandon_max=0.03) == 7
    assert not may_dial(Ringing(), 0.2, free=0, abandon_max=0.03)


@given(calls=st.integers(0, 60), rate=RATES, free=st.integers(0, 40))
def test_the_expectation_is_the_sum_over_the_distribution(calls: int, rate: float, free: int) -> None:
    summed = sum(
        (answers - free) * math.comb(calls, answers) * rate**answers * (1 - rate) ** (calls - answers)
        for answers in range(free + 1, calls + 1)
    )
    assert abandonment.expected_abandoned(calls, rate, free) == pytest.approx(summed, abs=1e-9)


@given(rates=st.lists(RATES, min_size=1, max_size=25), free=st.integers(0, 20))
def test_the_expected_share_of_mixed_rates_is_never_below_the_exact_one(
    rates: list[float], free: int
) -> None:
    """The exact expectation of a sum of unequal trials, against the mean that is put in for them."""
    distribution = [1.0]
    for rate in rates:
        missed = [chance * (1 - rate) for chance in distribution] + [0.0]
        answered = [0.0] + [chance * rate for chance in distribution]
        distribution = [a + b for a, b in zip(missed, answered, strict=True)]
    exact = sum((answers - free) * chance for answers, chance in enumerate(distribution) if answers > free)
    ringing = Ringing(len(rates), sum(rates))
    judged = expected_share(ringing, free) * sum(rates)
    assert judged >= exact - 1e-9
    if len(set(rates)) == 1:
        assert judged == pytest.approx(exact, abs=1e-9)


@given(rate=RATES, free=st.integers(0, 60), calls=st.integers(0, 400), abandon_max=st.floats(0, 0.1))
def test_more_calls_raise_the_share_and_more_agents_lower_it(
    rate: float, free: int, calls: int, abandon_max: float
) -> None:
    ringing = Ringing().plus(rate, calls)
    share = expected_share(ringing, free)
    assert 0 <= share <= 1 + 1e-9
    assert expected_share(ringing.plus(rate), free) >= share - 1e-9
    assert expected_share(ringing, free + 1) <= share + 1e-9
    most = dials_max(rate, free, abandon_max)
    assert most >= free
    assert expected_share(Ringing().plus(rate, most), free) <= abandon_max


@given(rate=st.floats(0.001, 0.999), free=st.integers(0, 5000), calls=st.integers(1, 20_000))
def test_large_numbers_neither_vanish_nor_overflow(rate: float, free: int, calls: int) -> None:
    found = abandonment.expected_abandoned(calls, rate, free)
    assert max(0.0, calls * rate - free) - 1e-6 <= found <= calls * rate + 1e-6


@given(answered=st.integers(0, 500), more=st.integers(0, 500))
def test_the_answer_rate_bound_lies_above_the_observed_rate(answered: int, more: int) -> None:
    ended = answered + more
    rate = answer_rate(answered, ended)
    assert rate == 1.0 or rate > answered / ended


def test_recent_counts_the_newest_500_calls_within_an_hour() -> None:
    minutes = [(NOW - timedelta(minutes=each), Counted(ended=200, answered=each)) for each in range(90)]
    assert abandonment.recent(minutes, NOW) == Counted(ended=600, answered=3)
    slow = [(NOW - timedelta(minutes=each), Counted(ended=1)) for each in range(90)]
    assert abandonment.recent(slow, NOW) == Counted(ended=61)


def test_overdialling_ends_at_80_percent_of_abandon_max() -> None:
    assert not abandonment.is_braked(Counted(), 0.03)
    assert not abandonment.is_braked(Counted(by_person=1000, abandoned=23), 0.03)
    assert abandonment.is_braked(Counted(by_person=1000, abandoned=24), 0.03)
    assert abandonment.is_braked(Counted(by_person=10, abandoned=1), 0.03)


def test_the_abandoned_share_without_answered_calls_is_unknown() -> None:
    assert Counted().abandoned_share is None
    assert (Counted(by_person=3) + Counted(by_person=1, abandoned=1)).abandoned_share == 0.25
