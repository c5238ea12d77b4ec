"""The words of a wakeup, which any version may read."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.jobs import wakeups
from trunkline.store.jobs import Lane

MOMENT = datetime(2025, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
lanes = st.builds(
    Lane, st.from_regex(r"[a-z][a-z0-9_]{0,49}", fullmatch=True), st.integers(1, 99), st.booleans()
)
moments = st.datetimes(datetime(2000, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


def test_a_wakeups_payload_lists_its_lanes() -> None:
    assert list(wakeups.encode({Lane("export", 50): MOMENT, Lane("keyed", 1, True): MOMENT})) == [
        "export 50 0 1740830400123455,keyed 1 1 1740830400123455"
    ]


@given(st.dictionaries(lanes, moments, min_size=1, max_size=20))
def test_a_decoded_wakeup_has_every_lane_and_no_time_later_than_the_job(places: dict[Lane, datetime]) -> None:
    heard: wakeups.Places = {}
    for payload in wakeups.encode(places):
        assert len(payload.encode()) < 8000
        part = wakeups.decode(payload)
        assert part is not None
        wakeups.merge(heard, part.items())
    assert heard.keys() == places.keys()
    for lane, run_at in places.items():
        assert timedelta(0) < run_at - heard[lane] < timedelta(milliseconds=1)


def test_many_lanes_are_split_into_payloads_below_postgres_limit() -> None:
    places = {Lane(f"a_rather_long_name_of_a_job_type_{n}", 50): MOMENT for n in range(400)}
    payloads = list(wakeups.encode(places))
    assert len(payloads) > 1
    assert max(len(payload.encode()) for payload in payloads) < 8000
    assert sum(len(wakeups.decode(payload) or {}) for payload in payloads) == 400


@pytest.mark.parametrize(
    "payload", ["", "{}", "export", "export 50 0", "export x 0 1", "export 50 0 " + "9" * 40]
)
def test_an_unreadable_wakeup_decodes_to_none(payload: str) -> None:
    assert wakeups.decode(payload) is None


def test_merging_wakeups_keeps_the_earliest_time() -> None:
    places: wakeups.Places = {}
    lane = Lane("export", 50)
    for seconds in (5, 3, 9):
        wakeups.merge(places, [(lane, MOMENT + timedelta(seconds=seconds))])
    assert places == {lane: MOMENT + timedelta(seconds=3)}
