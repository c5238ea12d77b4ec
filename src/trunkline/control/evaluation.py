"""Evaluates alarms. Pure: from samples to verdicts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trunkline.control.alarms import AlarmDefinition, Measured, Reported

# Samples further apart than this are not one history: no leader measured in between.
GAP_MAX_S = 60.0


@dataclass(frozen=True, slots=True)
class Sample:
    age_s: float
    value: float


@dataclass(frozen=True, slots=True)
class History:
    """The history of one alarm and subject: samples, oldest first, and for a reported alarm when it was last raised."""

    samples: Sequence[Sample] = ()
    is_open: bool = False
    seen_s_ago: float = 0.0


@dataclass(frozen=True, slots=True)
class Raised:
    value: float


@dataclass(frozen=True, slots=True)
class Cleared:
    pass


def evaluate(definition: AlarmDefinition, history: History) -> Raised | Cleared | None:
    match definition.rule:
        case Reported(quiet_s=quiet_s):
            is_quiet = quiet_s is not None and history.seen_s_ago > quiet_s
            return Cleared() if history.is_open and is_quiet else None
        case Measured() as rule:
            return _clear(rule, history) if history.is_open else _raise(rule, history)


def _raise(rule: Measured, history: History) -> Raised | None:
    run = _latest_run(history.samples, lambda value: value > rule.above)
    return Raised(run[0].value) if run and _lasted_s(run) >= rule.for_s else None


def _clear(rule: Measured, history: History) -> Cleared | None:
    run = _latest_run(history.samples, lambda value: value <= rule.clear_at)
    return Cleared() if run and _lasted_s(run) >= rule.clear_for_s else None


def _latest_run(samples: Sequence[Sample], holds: Callable[[float], bool]) -> list[Sample]:
    """The latest unbroken run of samples for which it holds, newest first."""
    run: list[Sample] = []
    age_s = 0.0
    for sample in reversed(samples):
        if not holds(sample.value) or sample.age_s - age_s > GAP_MAX_S:
            break
        run.append(sample)
        age_s = sample.age_s
    return run


def _lasted_s(run: Sequence[Sample]) -> float:
    return run[-1].age_s - run[0].age_s


def share(part: float, whole: float, part_min: float = 3.0) -> float:
    """A rate that is 0 below `part_min` events: one failure among ten calls is no trend."""
    return part / whole if whole > 0 and part >= part_min else 0.0
