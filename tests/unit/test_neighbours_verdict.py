"""The proof of isolation is met only if every fault happened and no other work was harmed."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from bench._neighbours_verdict import NEIGHBOURS, Innocent, Kept, OwnCalls, Verdict

AT = datetime(2030, 5, 1, tzinfo=UTC)
INNOCENT = Innocent("job-1", AT, 0.1, runs=1, ends=1, is_excused=False, turns=())
EXCUSED = replace(INNOCENT, late_s=6.5, runs=2, is_excused=True)
KEPT = Kept(
    keys=3,
    held_done=3,
    free_done=3,
    free_latest_s=0.1,
    events=9,
    events_lost=0,
    events_twice=0,
    events_refused=4,
)
CALLS = OwnCalls("jobs.submit", 20, failed=0, latest_s=0.1)
MET = Verdict(
    120.0,
    jobs=[INNOCENT, EXCUSED],
    mailboxes=[INNOCENT],
    neighbours=dict.fromkeys(NEIGHBOURS, 1),
    kept=KEPT,
    own_calls=[CALLS],
    ticks=60,
    tick_gap_s=2.1,
    is_pooled=True,
)


def test_the_isolation_goal_is_met_if_every_fault_happened_without_harm_to_others() -> None:
    assert MET.is_met
    assert "The goal was met." in MET.page()


@pytest.mark.parametrize("neighbour", NEIGHBOURS)
def test_a_fault_that_never_happened_misses_the_goal(neighbour: str) -> None:
    found = replace(MET, neighbours={**MET.neighbours, neighbour: 0})
    assert not found.is_whole
    assert "The goal was not met." in found.page()


@pytest.mark.parametrize(
    "harm",
    [
        {"jobs": [replace(INNOCENT, ends=0)]},
        {"mailboxes": [replace(EXCUSED, ends=2)]},
        {"kept": replace(KEPT, free_done=2)},
        {"kept": replace(KEPT, held_done=2)},
        {"kept": replace(KEPT, events_lost=1)},
        {"kept": replace(KEPT, events_twice=1)},
        {"own_calls": []},
        {"ticks": 0},
    ],
    ids=str,
)
def test_lost_or_repeated_work_makes_the_verdict_not_whole(harm: dict[str, object]) -> None:
    assert not replace(MET, **harm).is_whole  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "harm",
    [
        {"jobs": [replace(INNOCENT, late_s=1.1)]},
        {"mailboxes": [replace(INNOCENT, runs=2)]},
        {"jobs": [replace(EXCUSED, late_s=7.1)]},
        {"own_calls": [replace(CALLS, failed=1)]},
        {"own_calls": [replace(CALLS, latest_s=1.1)]},
        {"kept": replace(KEPT, free_latest_s=7.1)},
        {"tick_gap_s": 9.1},
    ],
    ids=str,
)
def test_late_work_misses_the_goal(harm: dict[str, object]) -> None:
    found = replace(MET, **harm)  # type: ignore[arg-type]
    assert found.is_whole
    assert not found.is_met
    assert found.misses
