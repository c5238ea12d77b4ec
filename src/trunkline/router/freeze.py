"""Freezes pod removals when very many pods vanish at once: then the observer is more likely at fault than the pods.

A watch that lost events, a cut network or a clock that jumped would otherwise take the pod from every call and empty
every pool. So the pool manager removes nothing, still allocates pods that were last seen idle, and raises an alarm.
"""

from collections import deque
from dataclasses import dataclass

WINDOW_S = 60.0
SHARE_MAX = 1 / 3
# Two pods that die together are a coincidence, also in a pool of five.
COUNT_MIN = 3
# A freeze ends by itself: pods that are really gone must not stay in the pools for ever.
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
        """Whether the pods in `gone` may be removed. The caller passes those that a freeze held back again every
        time."""
        names = {name for _, name in self._vanished}
        self._vanished.extend((now_s, name) for name in gone if name not in names)
        held_back = set(gone) if self.is_on else set()
        while self._vanished and now_s - self._vanished[0][0] > WINDOW_S:
            if self._vanished[0][1] in held_back:
                break
            self._vanished.popleft()
        count = len(self._vanished)
        # Pods that were removed within the window existed when it began.
        total_before = total + len({name for _, name in self._vanished} - set(gone))
        is_mass = count >= COUNT_MIN and count > total_before * SHARE_MAX
        if not is_mass or not gone:
            self._since_s = None
            return FreezeState(False, count)
        self._since_s = now_s if self._since_s is None else self._since_s
        if now_s - self._since_s > LASTS_MAX_S:
            self._since_s = None
            self._vanished.clear()
            return FreezeState(False, count)
        return FreezeState(True, count)
