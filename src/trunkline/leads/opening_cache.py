"""Openings of calling windows, cached over one upload: its leads are due at a thousand moments of the same days.

An opening that was found from a moment on is the answer for every moment between that one and its end. `windows` keeps
the last one of each rule, which is enough for leads that are due now.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from datetime import datetime

from trunkline.leads.windows import Opening, WindowRule, next_opening

Rules = tuple[WindowRule, ...]

# Of each rule; when there are more, all are forgotten.
KNOWN_MAX = 512


@dataclass(slots=True)
class _Known:
    """OpeningCache in the order of the moments from which on they were searched."""

    since: list[datetime] = field(default_factory=list)
    openings: list[Opening] = field(default_factory=list)

    def at(self, moment: datetime) -> Opening | None:
        place = bisect_right(self.since, moment) - 1
        if place < 0:
            return None
        opening = self.openings[place]
        is_answer = opening.closes_at is not None and moment < opening.closes_at
        return Opening(max(moment, opening.opens_at), opening.closes_at) if is_answer else None

    def keep(self, moment: datetime, opening: Opening) -> None:
        if len(self.since) >= KNOWN_MAX:
            self.since.clear()
            self.openings.clear()
        place = bisect_right(self.since, moment)
        self.since.insert(place, moment)
        self.openings.insert(place, opening)


class OpeningCache:
    def __init__(self) -> None:
        self._known: dict[Rules, _Known] = {}

    def find(self, rules: Rules, moment: datetime) -> Opening | None:
        """As `windows.next_opening`. None: it never opens."""
        known = self._known.setdefault(rules, _Known())
        found = known.at(moment)
        if found is None:
            found = next_opening(rules, moment)
            if found is not None:
                known.keep(moment, found)
        return found
