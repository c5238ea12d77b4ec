"""What follows from a run: finished, again after a while, or never again."""

from datetime import UTC, datetime
from uuid import uuid4

import pytest

from trunkline.jobs.outcomes import (
    RESULT_BYTES_MAX,
    Cancel,
    Done,
    Failed,
    GivenBack,
    Policy,
    Snooze,
    from_exception,
    verdict,
)
from trunkline.store.jobs import Death, End, JobClaim, ReturnedClaim

NOW = datetime(2025, 1, 1, tzinfo=UTC)


def claimed(attempt: int = 1, max_attempts: int = 4) -> JobClaim:
    return JobClaim(
        uuid4(), 7, "work", 50, NOW, NOW, attempt, max_attempts, None, None, None, None, "{}"
    )  # fmt: skip


def returned(outcome: object, **claim: int) -> ReturnedClaim:
    decided = verdict(claimed(**claim), Policy(), outcome)  # type: ignore[arg-type]
    assert isinstance(decided, ReturnedClaim)
    return decided


@pytest.mark.parametrize(("attempt", "wait_s"), [(1, 0.0), (2, 30.0), (3, 300.0)])
def test_failures_wait_as_the_backoff_table_says(attempt: int, wait_s: float) -> None:
    decided = returned(Failed("x"), attempt=attempt)
    assert (decided.delay_s, decided.counted) == (wait_s, True)


def test_the_fourth_failure_is_the_last() -> None:
    decided = verdict(claimed(attempt=4), Policy(), Failed("boom", "again"))
    assert isinstance(decided, Death)
    assert (decided.error_code, decided.error_message) == ("boom", "again")


def test_a_table_that_is_too_short_repeats_its_last_wait() -> None:
    policy = Policy(backoff_s=(1, 2), max_attempts=10)
    assert [policy.wait_s(attempt) for attempt in (1, 2, 3, 9)] == [1, 2, 2, 2]


@pytest.mark.parametrize("delay_s", [float("inf"), float("nan"), 1e12])
def test_a_wait_without_end_is_refused_where_it_is_said(delay_s: float) -> None:
    with pytest.raises(ValueError, match="no time to wait"):
        Snooze(delay_s)
    with pytest.raises(ValueError, match="no time to wait"):
        Failed("x", retry_in_s=delay_s)


def test_jitter_only_adds() -> None:
    policy = Policy(backoff_s=(100,), jitter=0.1)
    waits = [policy.wait_s(1) for _ in range(200)]
    assert all(100 <= wait_s <= 110 for wait_s in waits)
    assert max(waits) > min(waits)


def test_a_failure_may_bring_its_own_wait_or_be_final() -> None:
    assert returned(Failed("busy", retry_in_s=7.5), attempt=3).delay_s == 7.5
    assert isinstance(verdict(claimed(), Policy(), Failed("gone", final=True)), Death)


def test_a_snooze_does_not_count_as_a_run() -> None:
    decided = returned(Snooze(60), attempt=4)
    assert (decided.delay_s, decided.counted, decided.error_code) == (60, False, None)


def test_a_job_given_back_keeps_its_due_time() -> None:
    assert returned(GivenBack(counted=False)).delay_s is None


def test_a_cancelled_job_ends_with_its_reason() -> None:
    decided = verdict(claimed(), Policy(), Cancel("nobody wants it"))
    assert isinstance(decided, End)
    assert (decided.outcome, decided.error_message) == ("cancelled", "nobody wants it")


def test_a_result_is_kept_as_json() -> None:
    decided = verdict(claimed(), Policy(), Done({"rows": 3}))
    assert isinstance(decided, End)
    assert decided.result == '{"rows":3}'


@pytest.mark.parametrize("result", [object(), "x" * (RESULT_BYTES_MAX + 1), "\ud800"])
def test_a_result_that_cannot_be_kept_is_a_failure_that_no_retry_would_mend(result: object) -> None:
    decided = verdict(claimed(), Policy(), Done(result))
    assert isinstance(decided, Death)
    assert decided.error_code == "bad_result"


def test_a_failures_code_is_the_errors_code_or_its_class() -> None:
    error = RuntimeError("broken")
    assert from_exception(error) == Failed("RuntimeError", "broken")
    error.code = "E42"  # type: ignore[attr-defined]
    assert from_exception(error).code == "E42"


def test_words_that_postgres_would_refuse_are_made_harmless() -> None:
    decided = returned(Failed("c" * 60, "nul \x00 and \ud800 surrogate"))
    assert decided.error_code == "c" * 50
    assert decided.error_message is not None
    decided.error_message.encode()
    assert "\x00" not in decided.error_message


@pytest.mark.parametrize(
    "wrong", [{"backoff_s": ()}, {"priority": 0}, {"per_key": 0}, {"max_attempts": 1001}]
)
def test_an_invalid_policy_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(AssertionError):
        Policy(**wrong)  # type: ignore[arg-type]
