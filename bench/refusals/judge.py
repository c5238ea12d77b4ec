"""What a run showed, from what reached the carrier and what became of the leads. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

# What may leave before the first refusal is known everywhere.
KNOWN_WITHIN_S = 2.0
MINUTE_S = 60.0
LATE_MAX_S = 1.0


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to dial, as the carrier saw it, or as it was sent where no carrier could be reached."""

    at_s: float
    to: str
    done_s: float
    from_: str = ""


@dataclass(frozen=True, slots=True)
class Goal:
    """`per_minute_max`: requests to what is refused, from `from_s` after it was first met. None: it need not rest."""

    per_minute_max: int | None
    from_s: float = KNOWN_WITHIN_S
    at_a_time_max: int = 1
    # Leads that may end without a call.
    ended_max: int = 0
    # Within this all others are dialled although the fault goes on. None: they wait for its end.
    others_within_s: float | None = None
    # So long may another number of the same account stand still while leads wait. None: it has no other.
    other_number_pause_max_s: float | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    began_s: float
    healed_s: float
    leads: int
    # To what is refused, in order.
    asked: Sequence[Asked]
    # How late the leads of the healthy account were.
    healthy_late_s: Sequence[float]
    healthy_leads: int
    # Leads of the faulty account that a call was placed for, those that ended without one, and those still waiting.
    dialled: int
    ended: int
    waiting: int
    # When the last of those whose destination is not refused was dialled.
    last_dialled_s: float
    # Through another number of the account, which nothing is wrong with; in order.
    through_other_number: Sequence[Asked] = ()


@dataclass(slots=True)
class Verdict:
    fault: str
    leads: int = 0
    requests_at_first: int = 0
    requests_while_refused: int = 0
    requests_per_minute_max: int = 0
    requests_at_a_time_max: int = 0
    same_person_twice_in_a_row: int = 0
    healthy_leads: int = 0
    healthy_late_max_s: float = 0.0
    leads_ended: int = 0
    leads_waiting: int = 0
    healed_within_s: float = 0.0
    # None: the account has no other number.
    other_number_pause_max_s: float | None = None
    missed: list[str] = field(default_factory=list)

    @property
    def met(self) -> bool:
        return not self.missed

    def line(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}


def judge(fault: str, goal: Goal, seen: Evidence, *, timed: bool = True) -> Verdict:
    """`timed`: also how late the healthy account was, which a busy machine can make worse."""
    met_s = min((one.at_s for one in seen.asked), default=seen.began_s)
    known_s = max(met_s, seen.began_s) + goal.from_s
    first = [one for one in seen.asked if one.at_s <= known_s]
    resting = [one for one in seen.asked if known_s < one.at_s < seen.healed_s]
    verdict = Verdict(
        fault,
        leads=seen.leads,
        requests_at_first=len(first),
        requests_while_refused=len(resting),
        requests_per_minute_max=_most_within(resting, MINUTE_S),
        requests_at_a_time_max=_most_at_once(resting),
        same_person_twice_in_a_row=sum(one.to == other.to for one, other in pairwise(resting)),
        healthy_leads=len(seen.healthy_late_s),
        healthy_late_max_s=round(max(seen.healthy_late_s, default=0.0), 3),
        leads_ended=seen.ended,
        leads_waiting=seen.waiting,
        healed_within_s=round(max(0.0, seen.last_dialled_s - seen.healed_s), 1),
    )
    if goal.other_number_pause_max_s is not None:
        pause_s = _longest_pause(seen.through_other_number, known_s, seen.healed_s)
        verdict.other_number_pause_max_s = round(pause_s, 1)
    verdict.missed = list(_missed(goal, seen, verdict, timed=timed))
    return verdict


def _missed(goal: Goal, seen: Evidence, verdict: Verdict, *, timed: bool) -> Iterable[str]:
    if goal.per_minute_max is not None:
        if verdict.requests_per_minute_max > goal.per_minute_max:
            yield f"{verdict.requests_per_minute_max} requests in a minute"
        if verdict.requests_at_a_time_max > goal.at_a_time_max:
            yield f"{verdict.requests_at_a_time_max} probes at a time"
        if goal.at_a_time_max == 1 and verdict.same_person_twice_in_a_row:
            yield "the same person twice in a row"
        if not verdict.requests_while_refused:
            yield "no probe at all"
    if verdict.leads_ended > goal.ended_max:
        yield f"{verdict.leads_ended} leads ended without a call"
    if verdict.leads_waiting:
        yield f"{verdict.leads_waiting} leads were never dialled"
    if goal.others_within_s is not None and seen.last_dialled_s > seen.began_s + goal.others_within_s:
        yield "others waited"
    pause_s, pause_max_s = verdict.other_number_pause_max_s, goal.other_number_pause_max_s
    if pause_s is not None and pause_max_s is not None and pause_s > pause_max_s:
        yield f"the other number stood still for {pause_s} s"
    if verdict.healthy_leads < seen.healthy_leads:
        yield f"{seen.healthy_leads - verdict.healthy_leads} leads of the healthy account were not dialled"
    if timed and verdict.healthy_late_max_s >= LATE_MAX_S:
        yield f"the healthy account was {verdict.healthy_late_max_s} s late"


def _most_within(asked: Sequence[Asked], window_s: float) -> int:
    return max(
        (sum(one.at_s <= other.at_s < one.at_s + window_s for other in asked) for one in asked), default=0
    )


def _most_at_once(asked: Sequence[Asked]) -> int:
    return max((sum(other.at_s <= one.at_s < other.done_s for other in asked) for one in asked), default=0)


def _longest_pause(asked: Sequence[Asked], from_s: float, to_s: float) -> float:
    moments = [from_s, *(one.at_s for one in asked if from_s < one.at_s < to_s), to_s]
    return max(later - sooner for sooner, later in pairwise(moments))
