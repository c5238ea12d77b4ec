"""When a campaign will have called all leads, at the pace of the last ten minutes, or since it runs. Pure.

The remaining work takes its time only while its windows are open: nights and holidays are added. It is an estimate, and
is absent where nothing has happened yet.
"""

from datetime import datetime, timedelta

from trunkline.leads.windows import WindowRule, next_opening

RECENT_S = 600.0
# The estimate walks over windows one by one. After this many it is further away than any plan.
OPENINGS_MAX = 400


def pace(ended: int, since: datetime | None, now: datetime) -> float:
    """How many leads end per second. A campaign that has just begun or resumed is measured over the time since then, at
    least a second. One that does not run is measured over ten minutes."""
    passed_s = (now - since).total_seconds() if since else RECENT_S
    return ended / max(1.0, min(RECENT_S, passed_s))


def ends_at(left: int, per_s: float, now: datetime, rules: tuple[WindowRule, ...]) -> datetime | None:
    """None: it cannot be estimated."""
    if left == 0:
        return now
    if per_s <= 0:
        return None
    work, at = timedelta(seconds=left / per_s), now
    for _ in range(OPENINGS_MAX):
        opening = next_opening(rules, at) if rules else None
        if rules and opening is None:
            return None
        if opening is None or opening.closes_at is None:
            return max(at, opening.opens_at if opening else at) + work
        open_for = opening.closes_at - opening.opens_at
        if work <= open_for:
            return opening.opens_at + work
        work, at = work - open_for, opening.closes_at
    return None
