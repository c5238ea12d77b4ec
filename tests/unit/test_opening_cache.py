from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from trunkline.leads import windows
from trunkline.leads.opening_cache import KNOWN_MAX, OpeningCache
from trunkline.leads.windows import TimeSpan, Window, WindowRule

MONDAY = datetime(2030, 1, 7, tzinfo=UTC)
WORKDAYS = Window(spans=(TimeSpan(days=("mon", "tue", "wed", "thu", "fri"), start="09:00", end="18:00"),))
NIGHTS = Window(spans=(TimeSpan(start="22:00", end="03:00"),))
NEVER = Window(spans=(TimeSpan(start="09:00", end="10:00"),), timezone="UTC")

RULES = st.sampled_from(
    [
        (WindowRule(WORKDAYS, ("America/New_York",)),),
        (WindowRule(NIGHTS, ("Europe/Berlin", "Europe/Lisbon")),),
        (WindowRule(NEVER, ("UTC",)), WindowRule(NEVER, ("Asia/Tokyo",))),
    ]
)
MOMENTS = st.integers(0, 14 * 24 * 60).map(lambda minutes: MONDAY + timedelta(minutes=minutes))


@given(st.lists(st.tuples(RULES, MOMENTS), max_size=30))
def test_a_cached_opening_equals_the_computed_one(
    asked: list[tuple[tuple[WindowRule, ...], datetime]],
) -> None:
    openings = OpeningCache()
    for rules, moment in asked:
        windows._searches.clear()
        assert openings.find(rules, moment) == windows.next_opening(rules, moment)


def test_the_opening_cache_is_bounded() -> None:
    openings, rules = OpeningCache(), (WindowRule(WORKDAYS, ("UTC",)),)
    for day in range(KNOWN_MAX + 50):
        openings.find(rules, MONDAY + timedelta(days=day))
    assert len(openings._by_rules[rules].since) <= KNOWN_MAX
