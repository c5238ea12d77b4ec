"""When a database counts as restored to an earlier moment."""

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.control.continuity import (
    UNWITNESSED_AFTER_S,
    ContinuityMark,
    WentBack,
    judge,
)
from trunkline.store.controls import Poll

NOW = datetime(2030, 5, 1, 9, 30, tzinfo=UTC)
HERE, ELSEWHERE = uuid4(), uuid4()


def poll(beat: int, silent_s: float = 1.0, installation: UUID | None = HERE) -> Poll:
    return Poll(1, 1, installation, beat, NOW - timedelta(seconds=silent_s), NOW)


def test_an_unused_database_does_not_count_as_restored() -> None:
    assert judge(poll(0, 1e6, None), None, ContinuityMark(ELSEWHERE, 900), "strict") is None


@pytest.mark.parametrize(("own", "said"), [(None, 100), (100, None), (90, 100), (100, 90)])
def test_a_database_went_back_if_a_witness_has_seen_a_later_beat(own: int | None, said: int | None) -> None:
    marks = [ContinuityMark(HERE, beat) if beat is not None else None for beat in (own, said)]
    verdict = judge(poll(99), marks[0], marks[1], "witness")
    assert isinstance(verdict, WentBack)
    assert verdict.beyond == 100
    assert judge(poll(100), marks[0], marks[1], "strict") == ContinuityMark(HERE, 100)


def test_the_mark_of_another_installation_is_ignored() -> None:
    assert judge(poll(5), None, ContinuityMark(ELSEWHERE, 900), "strict") == ContinuityMark(HERE, 5)


def test_a_changed_installation_under_a_running_process_went_back() -> None:
    verdict = judge(poll(500, installation=ELSEWHERE), ContinuityMark(HERE, 5), None, "witness")
    assert isinstance(verdict, WentBack)


@pytest.mark.parametrize("said", [None, ContinuityMark(ELSEWHERE, 900)])
def test_without_a_witness_a_strict_guard_takes_a_long_silence_for_a_restore(
    said: ContinuityMark | None,
) -> None:
    silent = poll(5, UNWITNESSED_AFTER_S + 1)
    assert isinstance(judge(silent, None, said, "strict"), WentBack)
    assert isinstance(judge(silent, None, said, "witness"), ContinuityMark)
    assert isinstance(judge(poll(5, UNWITNESSED_AFTER_S), None, said, "strict"), ContinuityMark)


def test_with_a_witness_a_long_silence_is_no_restore() -> None:
    assert isinstance(judge(poll(5, 1e7), None, ContinuityMark(HERE, 5), "strict"), ContinuityMark)


def test_the_reason_of_a_restore_names_its_moment_and_fits_its_column() -> None:
    verdict = judge(poll(40, 61), None, ContinuityMark(HERE, 100), "strict")
    assert isinstance(verdict, WentBack)
    assert "2030-05-01 09:28:59" in verdict.reason
    assert "60 s" in verdict.reason
    unwitnessed = judge(poll(5, 1e7), None, None, "strict")
    assert isinstance(unwitnessed, WentBack)
    assert max(len(verdict.reason), len(unwitnessed.reason)) <= 500


@given(beat=st.integers(1, 1000), own=st.integers(1, 1000), said=st.integers(1, 1000))
def test_a_database_is_steady_exactly_if_no_witness_has_seen_a_later_beat(
    beat: int, own: int, said: int
) -> None:
    verdict = judge(poll(beat), ContinuityMark(HERE, own), ContinuityMark(HERE, said), "strict")
    assert isinstance(verdict, ContinuityMark) == (beat >= max(own, said))
