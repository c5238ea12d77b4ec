"""The order of a lead's events. Pure.

Two clocks date a call: ours, and the carrier's, which has whole seconds and may be off. They are never compared. The
events of one attempt have one order, whatever the clocks show and however its webhooks overtook each other; attempts
follow each other; and all other events are placed between them by our clock.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import accumulate

from trunkline.store.leads import StoredTimelineEvent

# The steps of an attempt. Any other event happened during the call or after it, by the time of its arrival.
_STEPS = {
    "intended": 0,
    "accepted": 1,
    "initiated": 1,
    "ringing": 2,
    "answered": 3,
    "ended": 5,
    "rejected": 5,
    "absent": 5,
    "unknown": 5,
}
_DURING, _END, _AFTER = 4, 5, 6


def in_order(events: Sequence[StoredTimelineEvent]) -> list[StoredTimelineEvent]:
    """Oldest first."""
    calls = [each for attempt in _by_attempt(events) for each in attempt]
    steps = [each for each, is_after in calls if not is_after]
    others = [each for each, is_after in calls if is_after]
    others += [each for each in events if each.attempt_id is None]
    placed = [*zip(_moments(steps), steps, strict=True), *((each.at, each) for each in others)]
    return [each for _, each in sorted(placed, key=lambda pair: pair[0])]


def _moments(steps: Sequence[StoredTimelineEvent]) -> list[datetime]:
    """When each step happened at the latest, by our clock: before the steps that came after it arrived."""
    moments: list[datetime] = []
    soonest: datetime | None = None
    for each in reversed(steps):
        bounds = [moment for moment in (soonest, each.at if each.clock == "ours" else None) if moment]
        # Only the carrier's clock dates it, and nothing came after it.
        moments.append(min(bounds, default=each.at))
        soonest = min(bounds, default=None)
    return list(accumulate(reversed(moments), max))


def _by_attempt(events: Iterable[StoredTimelineEvent]) -> list[list[tuple[StoredTimelineEvent, bool]]]:
    """The attempts in their order, each step by step, and whether an event came after the call."""
    groups: dict[object, list[StoredTimelineEvent]] = {}
    for each in events:
        if each.attempt_id is not None:
            groups.setdefault(each.attempt_id, []).append(each)
    ordered = sorted(groups.values(), key=lambda group: (group[0].ordinal or 0, min(e.at for e in group)))
    return [_steps(group) for group in ordered]


def _steps(group: Sequence[StoredTimelineEvent]) -> list[tuple[StoredTimelineEvent, bool]]:
    ends = [each.at for each in group if _STEPS.get(each.what) == _END and each.clock == "ours"]

    def step(each: StoredTimelineEvent) -> tuple[int, datetime]:
        known = _STEPS.get(each.what) if each.source in ("attempt", "carrier") else None
        if known is not None:
            return known, each.at
        return (_AFTER if ends and each.at > min(ends) else _DURING), each.at

    return [(each, step(each)[0] == _AFTER) for each in sorted(group, key=step)]
