"""Bad jobs are refused where they are made, in words that say what to do."""

from datetime import datetime
from functools import partial
from typing import Any

import msgspec
import pytest

from trunkline.jobs import (
    Done,
    InvalidJob,
    JobType,
    PayloadRefused,
    Policy,
    Registry,
    Run,
    UnknownJobType,
    job,
)
from trunkline.jobs.registry import PAYLOAD_BYTES_MAX, declared


class Report(msgspec.Struct):
    day: str
    pages: int = 1


REPORT = JobType("report", Report, Policy())


def test_a_payload_comes_back_as_its_type() -> None:
    assert REPORT.decode(REPORT.new(Report("monday", 3)).payload) == Report("monday", 3)


def test_what_is_not_given_comes_from_the_policy() -> None:
    new = JobType("x", dict, Policy(priority=7, max_attempts=9)).new({})
    assert (new.priority, new.max_attempts, new.run_at) == (7, 9, None)


@pytest.mark.parametrize("payload", [{"day": object()}, {"day": {1, object()}}, "\ud800"])
def test_a_payload_that_does_not_serialise_is_refused(payload: object) -> None:
    with pytest.raises(PayloadRefused, match="job anything cannot be written as JSON"):
        JobType("anything", object, Policy()).new(payload)


def test_a_payload_that_does_not_fit_its_type_is_refused() -> None:
    with pytest.raises(PayloadRefused, match=r"job report does not fit its type: Expected `int`"):
        REPORT.new(Report("monday", "three"))  # type: ignore[arg-type]


def test_a_payload_of_ten_megabytes_is_refused_and_told_where_to_go() -> None:
    with pytest.raises(PayloadRefused, match=f"allowed: {PAYLOAD_BYTES_MAX}. Store it elsewhere"):
        REPORT.new(Report("x" * 10_000_000))


def test_the_largest_payload_fits() -> None:
    overhead = len(REPORT.encode(Report("")))
    assert len(REPORT.encode(Report("x" * (PAYLOAD_BYTES_MAX - overhead)))) == PAYLOAD_BYTES_MAX


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"priority": 0}, "1 .first. to 99"),
        ({"priority": 100}, "1 .first. to 99"),
        ({"max_attempts": 0}, "max_attempts is 0"),
        ({"unique_key": ""}, "unique_key must have 1 to 200"),
        ({"unique_key": "a\x00"}, "unique_key"),
        ({"concurrency_key": "k" * 201}, "concurrency_key"),
        ({"run_at": datetime(2025, 1, 1)}, "has no time zone"),  # noqa: DTZ001
    ],
)
def test_an_option_out_of_its_bounds_is_refused(option: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        REPORT.new(Report("monday"), **option)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "Upper", "with-dash", "1st", "x" * 51])
def test_a_name_that_could_not_be_a_label_is_refused(name: str) -> None:
    with pytest.raises(InvalidJob, match="is no name for a job type"):
        JobType(name, dict, Policy())


def test_an_unknown_type_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownJobType, match=r"There is no job type 'repot'. Known: report"):
        Registry([REPORT])["repot"]


def test_two_types_of_one_name_are_a_mistake() -> None:
    with pytest.raises(InvalidJob, match="two job types of the name report"):
        Registry([REPORT, JobType("report", dict, Policy())])


def test_the_decorator_declares_a_type_by_its_annotation() -> None:
    @job("decorated_in_a_test", Policy(per_key=3))
    async def decorated(report: Report, run: Run) -> Done:
        return Done(report.pages)

    assert declared["decorated_in_a_test"] is decorated
    assert declared.running_max["decorated_in_a_test"] == 3
    assert decorated.decode('{"day":"friday"}') == Report("friday")


def test_a_handler_of_the_wrong_shape_is_refused() -> None:
    async def handler(report: Report) -> None: ...

    with pytest.raises(InvalidJob, match="must take a payload and a run"):
        job("one_argument")(handler)  # type: ignore[arg-type]


def test_a_type_without_a_handler_is_known_and_not_run() -> None:
    registry = Registry([REPORT])
    assert registry.runnable == []
    assert registry.policy("of another version") == Policy()


def plain(payload: dict[str, int], run: Run) -> None:
    """Not async."""


class Plain:
    def __call__(self, payload: dict[str, int], run: Run) -> None: ...


@pytest.mark.parametrize("handler", [plain, Plain(), partial(plain), lambda payload, run: None])
def test_a_plain_function_is_refused_where_it_is_declared(handler: Any) -> None:
    """It would have its effect at every try, and fail each time."""
    with pytest.raises(InvalidJob, match="async def"):
        job("plainly_wrong")(handler)
    with pytest.raises(InvalidJob, match="async def"):
        Registry().add(JobType("plainly_wrong", dict, Policy()), handler)


def test_the_refusal_names_the_function_and_its_place() -> None:
    with pytest.raises(InvalidJob, match=r"plain \(.*test_jobs_registry\.py:\d+\)"):
        job("plainly_wrong")(plain)  # type: ignore[arg-type]


class Async:
    async def __call__(self, payload: dict[str, int], run: Run) -> None: ...

    async def method(self, payload: dict[str, int], run: Run, extra: int = 0) -> None: ...


@pytest.mark.parametrize("handler", [Async(), Async().method, partial(Async().method, extra=1)])
def test_whatever_can_be_awaited_is_taken(handler: Any) -> None:
    registry = Registry()
    registry.add(JobType("right", dict, Policy()), handler)
    assert registry.runnable == ["right"]
