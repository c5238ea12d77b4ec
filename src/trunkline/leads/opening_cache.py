"""Openings of calling windows, cached over one upload: its leads are due at a thousand times of the same days.

An opening that was found for a time is the answer for every time between that one and its end. `windows` caches the
last one of each rule, which is enough for leads that are due now.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from datetime import datetime

from trunkline.leads.windows import Opening, WindowRule, next_opening

Rules = tuple[WindowRule, ...]

# Per rule; when there are more, all are dropped.
KNOWN_MAX = 512


@dataclass(slots=True)
class _RuleOpenings:
    """Openings, by the times from which on they were searched."""

    since: list[datetime] = field(default_factory=list)
    openings: list[Opening] = field(default_factory=list)

    def at(self, moment: datetime) -> Opening | None:
        index = bisect_right(self.since, moment) - 1
        if index < 0:
            return None
        opening = self.openings[index]
        is_answer = opening.closes_at is not None and moment < opening.closes_at
        return Opening(max(moment, opening.opens_at), opening.closes_at) if is_answer else None

    def put(self, moment: datetime, opening: Opening) -> None:
        if len(self.since) >= KNOWN_MAX:
            self.since.clear()
            self.openings.clear()
        index = bisect_right(self.since, moment)
        self.since.insert(index, moment)
        self.openings.insert(index, opening)


class OpeningCache:
    def __init__(self) -> None:
        self._by_rules: dict[Rules, _RuleOpenings] = {}

    def find(self, rules: Rules, moment: datetime) -> Opening | None:
        """As `windows.next_opening`. None: it never opens."""
        openings = self._by_rules.setdefault(rules, _RuleOpenings())
        opening = openings.at(moment)
        if opening is None:
            opening = next_opening(rules, moment)
            if opening is not None:
                openings.put(moment, opening)
        return opening
