"""A worker's book of lanes: which to claim from, from which position on, and when next."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

from trunkline.jobs.lanes import BUSY_KEY_S, MARGIN, LaneBook
from trunkline.jobs.worker import PollLimits, wait_s
from trunkline.store.jobs import JobClaim, Lane, LanePosition, NextDue, Survey

NOON = datetime(2025, 1, 1, 12, tzinfo=UTC)
A, B, KEYED = Lane("a", 50), Lane("b", 50), Lane("a", 50, True)


def test_one_slow_survey_does_not_lengthen_the_poll_interval() -> None:
    limits = PollLimits(probe_s=1.0, poll_s=30.0, share_max=0.05)
    assert wait_s([9.0], limits) == 1.0
    assert wait_s([9.0, 0.001, 9.0], limits) == 1.0
    assert wait_s([0.3, 0.2, 0.4], limits) == 4.0
    assert wait_s([9.0, 9.0, 9.0], limits) == 30.0


def at(seconds: float, number: int = 0) -> LanePosition:
    return LanePosition(NOON + timedelta(seconds=seconds), UUID(int=number))


def claimed(lane: Lane, place: LanePosition) -> JobClaim:
    key = "k" if lane.keyed else None
    return JobClaim(
        place.id, 1, lane.job_type, lane.priority, place.run_at, NOON, 1, 4, None, key, None, None, "{}"
    )


def emptied(book: LaneBook, *lanes: Lane, due_in_s: float | None = None, now_s: float = 0) -> None:
    book.emptied([NextDue(lane, NOON, due_in_s) for lane in lanes], NOON, now_s)


def test_a_survey_makes_due_lanes_hot_from_their_first_job_on() -> None:
    book = LaneBook()
    book.surveyed([Survey(A, at(-5), -5), Survey(B, at(9), 9), Survey(KEYED, at(-1), -1)], now_s=100)
    assert book.hot(100, keyed=False) == {A: at(-5)}
    assert book.hot(100, keyed=True) == {KEYED: at(-1)}
    assert book.next_due_s == 109


def test_a_lane_becomes_hot_when_its_next_job_is_due() -> None:
    book = LaneBook()
    book.surveyed([Survey(B, at(9), 9)], now_s=100)
    assert not book.hot(108.9, keyed=False)
    assert book.hot(109, keyed=False) == {B: at(9)}


def test_a_lane_with_a_busy_key_is_hot_again_at_the_same_place_after_a_pause() -> None:
    book = LaneBook()
    book.surveyed([Survey(KEYED, at(-5), -5)], now_s=100)
    lanes = book.hot(100, keyed=True)
    book.claimed([claimed(KEYED, at(-1))])
    book.busy(lanes, 100)
    assert not book.hot(100, keyed=True)
    assert book.next_due_s == 100 + BUSY_KEY_S
    assert book.hot(100 + BUSY_KEY_S, keyed=True) == {KEYED: at(-5)}


def test_a_hot_lane_leaves_no_timer_for_a_worker_without_room() -> None:
    book = LaneBook()
    book.surveyed([Survey(A, at(-5), -5)], now_s=100)
    assert book.hot(100, keyed=False)
    assert book.is_hot
    assert book.next_due_s == float("inf")


def test_a_lane_without_keys_becomes_hot_ahead_s_before_its_time() -> None:
    book = LaneBook(ahead_s=0.5)
    book.surveyed([Survey(A, at(9), 9), Survey(KEYED, at(9), 9)], now_s=100)
    assert book.hot(108.5, keyed=False) == {A: at(9)}
    assert not book.hot(108.5, keyed=True)
    assert book.hot(109, keyed=True) == {KEYED: at(9)}


def test_reading_hot_lanes_of_one_kind_leaves_the_timers_of_the_other() -> None:
    """Else the worker would go to sleep with nothing to wake it."""
    book = LaneBook()
    book.surveyed([Survey(A, at(9), 9)], now_s=100)
    assert not book.hot(109, keyed=True)
    assert book.next_due_s == 109


def test_a_wakeup_makes_a_lane_hot_and_lowers_its_floor() -> None:
    book = LaneBook()
    book.surveyed([Survey(A, at(5), -1)], now_s=0)
    book.woken({A: NOON, B: NOON})
    assert book.is_hot
    assert book.hot(0, keyed=False) == {A: at(0), B: at(0)}


def test_a_wakeup_during_a_claim_is_not_lost() -> None:
    book = LaneBook()
    book.woken({A: NOON})
    lanes = book.hot(0, keyed=False)
    book.woken({A: NOON})
    emptied(book, *lanes)
    assert book.hot(0, keyed=False) == {A: LanePosition(NOON - MARGIN)}


def test_a_wakeup_during_a_survey_is_not_lost() -> None:
    book = LaneBook()
    book.woken({A: NOON})
    book.surveyed([], now_s=0)
    assert book.hot(0, keyed=False) == {A: at(0)}


def test_a_survey_during_a_claim_is_not_lost() -> None:
    """It lies below the floor to which the look moves on: a transaction that committed late."""
    book = LaneBook()
    book.woken({A: NOON})
    lanes = book.hot(0, keyed=False)
    book.surveyed([Survey(A, at(-60), -60)], now_s=0)
    emptied(book, *lanes)
    assert book.is_hot
    assert book.hot(0, keyed=False) == {A: at(-60)}


def test_a_survey_does_not_raise_a_floor_that_a_wakeup_lowered() -> None:
    book = LaneBook()
    book.woken({A: NOON})
    book.surveyed([Survey(A, at(5), -1)], now_s=0)
    assert book.hot(0, keyed=False) == {A: at(0)}


def test_the_floor_moves_to_the_last_claimed_job() -> None:
    book = LaneBook()
    book.surveyed([Survey(A, at(0), -1)], now_s=0)
    assert book.hot(0, keyed=False) == {A: at(0)}
    book.claimed([claimed(A, at(1, 7)), claimed(A, at(2, 8)), claimed(A, at(1, 9))])
    assert book.hot(0, keyed=False) == {A: at(2, 8)}


def test_an_emptied_lane_is_quiet_until_its_next_job() -> None:
    book = LaneBook()
    book.woken({A: NOON})
    emptied(book, *book.hot(0, keyed=False), due_in_s=3, now_s=10)
    assert not book.is_hot
    assert book.next_due_s == 13
    assert book.hot(13, keyed=False) == {A: LanePosition(NOON - MARGIN)}


def test_an_emptied_lanes_floor_is_the_time_of_the_claim_at_most_the_next_job() -> None:
    book = LaneBook()
    book.emptied([NextDue(A, NOON, 0.5)], NOON - timedelta(seconds=2), now_s=10)
    assert book.hot(11, keyed=False) == {A: LanePosition(NOON - timedelta(seconds=2) - MARGIN)}
    book.emptied([NextDue(A, NOON, 0.5)], NOON + timedelta(seconds=2), now_s=10)
    assert book.hot(11, keyed=False) == {A: LanePosition(NOON - MARGIN)}


def test_job_types_take_turns_and_priorities_count_within_a_type() -> None:
    book = LaneBook()
    urgent, later = Lane("z", 1), Lane("z", 50)
    book.woken({A: NOON, B: NOON, later: NOON, urgent: NOON})
    looks = [list(book.hot(0, keyed=False)) for _ in range(9)]
    assert {look[0].job_type for look in looks} == {A.job_type, B.job_type, "z"}
    # But for the look that begins with what has waited longest.
    assert sum(look.index(urgent) < look.index(later) for look in looks) >= 6


def test_one_claim_in_ten_begins_with_the_lane_that_waited_longest() -> None:
    book = LaneBook()
    urgent, old = Lane("z", 1), Lane("z", 99)
    book.woken({old: NOON, urgent: NOON + timedelta(hours=1)})
    looks = [list(book.hot(0, keyed=False)) for _ in range(20)]
    assert sum(look[0] == old for look in looks) == 2
