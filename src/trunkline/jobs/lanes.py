"""A worker's state of the lanes that it serves: which may have jobs, from which position to claim, and when next.

Why there is a floor: claimed jobs leave dead entries at the front of the index, and while any transaction holds an old
snapshot, vacuum cannot remove them. A claim that starts at the front scans all of them: 2 ms become 200. So each lane
has a floor, and claims start there. A job below the floor (of a transaction that committed late, or locked during the
claim) is named by its wakeup, and found by the next poll in any case.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from trunkline.jobs import wakeups
from trunkline.store.jobs import JobClaim, Lane, LanePosition, NextDue, Survey

# How far the floor stays before the time of an empty claim: the usual length of a transaction that enqueues.
MARGIN = timedelta(seconds=0.5)
# A key's row is locked for the length of a small transaction.
BUSY_KEY_S = 0.02
# Every how many claims one begins with the lane whose jobs have waited longest, whatever their priority.
AGEING_EVERY = 10


def lane_of(job: JobClaim) -> Lane:
    return Lane(job.job_type, job.priority, job.concurrency_key is not None)


class LaneBook:
    """Times are of the worker's own clock, positions are of Postgres'."""

    def __init__(self, ahead_s: float = 0.0) -> None:
        # How long before it is due a job without a concurrency key may be claimed.
        self._ahead_s = ahead_s
        self._floors: dict[Lane, LanePosition] = {}
        self._hot: set[Lane] = set()
        self._due_s: dict[Lane, float] = {}
        self._woken: wakeups.Places = {}
        self._found: dict[Lane, tuple[LanePosition, float]] = {}
        self._turn = 0

    def woken(self, places: Mapping[Lane, datetime]) -> None:
        wakeups.merge(self._woken, places.items())

    def surveyed(self, found: Iterable[Survey], now_s: float) -> None:
        """The poller found these. Like a wakeup, they stay pending during a claim that is under way."""
        for survey in found:
            self._found[survey.lane] = (survey.first, self._poll_at_s(survey.lane, now_s + survey.due_in_s))

    def hot(self, now_s: float, *, keyed: bool) -> dict[Lane, LanePosition]:
        """Lanes that may have due jobs. Types take turns in being first; within a type lanes are in order of priority,
        except in every tenth claim, which begins with the longest wait, so that no lane starves."""
        for lane, run_at in self._woken.items():
            self._floors[lane] = min(LanePosition(run_at), self._floors.get(lane, LanePosition(run_at)))
            self._hot.add(lane)
        self._woken.clear()
        # They may only lower a floor: the positions are of the start of the poll, and claims have gone on since.
        for lane, (first, due_s) in self._found.items():
            self._floors[lane] = min(first, self._floors.get(lane, first))
            self._due_s[lane] = min(due_s, self._due_s.get(lane, due_s))
        self._found.clear()
        for lane in [lane for lane, due_s in self._due_s.items() if due_s <= now_s and lane.keyed == keyed]:
            # A timer that has fired and stayed would keep a worker without room from sleeping.
            del self._due_s[lane]
            self._hot.add(lane)
        lanes = [lane for lane in self._hot if lane.keyed == keyed]
        if len(lanes) > 1:
            self._turn += 1
            types = sorted({lane.job_type for lane in lanes})
            turn = {job_type: (n - self._turn) % len(types) for n, job_type in enumerate(types)}
            if self._turn // len(types) % AGEING_EVERY == 0:
                lanes.sort(key=lambda lane: (turn[lane.job_type], self._floors[lane].run_at))
            else:
                lanes.sort(key=lambda lane: (turn[lane.job_type], lane.priority))
        return {lane: self._floors[lane] for lane in lanes}

    @property
    def is_hot(self) -> bool:
        return bool(self._hot or self._woken or self._found)

    def claimed(self, jobs: Iterable[JobClaim]) -> None:
        """There may be more: the next claim starts at the last one."""
        for job in jobs:
            lane = lane_of(job)
            place = LanePosition(job.run_at, job.id)
            if place > self._floors.get(lane, place):
                self._floors[lane] = place

    def emptied(self, lanes: Iterable[NextDue], looked_at: datetime, now_s: float) -> None:
        """These lanes had no job left up to `looked_at`; their next due times were read afterwards."""
        for next_due in lanes:
            lane = next_due.lane
            self._floors[lane] = LanePosition(min(looked_at, next_due.seen_at) - MARGIN)
            self._hot.discard(lane)
            self._due_s.pop(lane, None)
            if next_due.due_in_s is not None:
                self._due_s[lane] = self._poll_at_s(lane, now_s + next_due.due_in_s)

    def busy(self, lanes: Mapping[Lane, LanePosition], now_s: float) -> None:
        """Another transaction has one of their concurrency keys locked: retry shortly, from the same positions."""
        for lane, place in lanes.items():
            self._floors[lane] = place
            self._hot.discard(lane)
            self._due_s[lane] = now_s + BUSY_KEY_S

    @property
    def next_due_s(self) -> float:
        return min(self._due_s.values(), default=float("inf"))

    def _poll_at_s(self, lane: Lane, due_s: float) -> float:
        return due_s if lane.keyed else due_s - self._ahead_s
