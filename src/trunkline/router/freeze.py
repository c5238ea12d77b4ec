"""When very many pods vanish at once, the fault is rather with whoever looks than with all of them.

A watcher that lost its way, a network that was cut, a clock that jumped: had we believed them, every call would have
lost its pod and every pool would be empty. So nothing is removed, those last known idle are still handed out, and a
person is told.
"""

from collections import deque
from dataclasses import dataclass

WINDOW_S = 60.0
SHARE_MAX = 1 / 3
# Two pods that die together are an accident, also where there are only five.
COUNT_MIN = 3
# A freeze that nobody looked into ends: pods that are truly gone must not stay for ever.
LASTS_MAX_S = 900.0


@dataclass(frozen=True, slots=True)
class FreezeState:
    is_frozen: bool
    vanished: int = 0


class Freeze:
    """Counts pods that vanished unexpectedly within the window."""

    def __init__(self) -> None:
        self._vanished: deque[tuple[float, str]] = deque()
        self._since_s: float | None = None

    @property
    def is_on(self) -> bool:
        return self._since_s is not None

    def judge(self, now_s: float, total: int, gone: list[str]) -> FreezeState:
        """May these be removed? Those that were held back are named again with every look."""
        names = {name for _, name in self._vanished}
        self._vanished.extend((now_s, name) for name in gone if name not in names)
        held_back = set(gone) if self.is_on else set()
        while self._vanished and now_s - self._vanished[0][0] > WINDOW_S:
            if self._vanished[0][1] in held_back:
                break
            self._vanished.popleft()
        count = len(self._vanished)
        # Those that were removed within the window were there when it began.
        there_were = total + len({name for _, name in self._vanished} - set(gone))
        is_mass = count >= COUNT_MIN and count > there_were * SHARE_MAX
        if not is_mass or not gone:
            self._since_s = None
            return FreezeState(False, count)
        self._since_s = now_s if self._since_s is None else self._since_s
        if now_s - self._since_s > LASTS_MAX_S:
            self._since_s = None
            self._vanished.clear()
            return FreezeState(False, count)
        return FreezeState(True, count)
