"""The rules of the pool manager: which pods change their tier, and when it removes none. Pure.

When very many pods vanish at once, the observer is more likely at fault than the pods. A watch that lost events, a cut
network or a clock that jumped would otherwise take the pod from every call and empty every pool. So the pool manager
freezes: it removes nothing, still allocates pods that were last seen idle, and raises an alarm.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trunkline.routing import Pod
from trunkline.settings.tiers import STANDARD, Tiers, assignment_order
from trunkline.store.pods import TierTarget

WINDOW_S = 60.0
SHARE_MAX = 1 / 3
# Two pods that die together are a coincidence, also in a pool of five.
COUNT_MIN = 3
# A freeze ends by itself: pods that are really gone must not stay in the pools for ever.
LASTS_MAX_S = 900.0


@dataclass(frozen=True, slots=True)
class Changes:
    """`changing`: pod -> its target; it takes no call until it has it. `raised`: pod -> a higher maximum, at once."""

    changing: Mapping[str, TierTarget] = field(default_factory=dict)
    raised: Mapping[str, int] = field(default_factory=dict)


def changes(pods: Sequence[Pod], busy: frozenset[str], tiers: Tiers) -> Changes:
    """Pods move from tiers above their target to tiers below it; a further surplus goes to standard. A pod that is
    leaving counts for no target and does not move. Pods that are changing already come first, then idle ones: a busy
    pod moves when its calls have ended."""
    counts = Counter(pod.tier for pod in pods if not pod.is_leaving)
    changing: dict[str, TierTarget] = {}
    for pod in sorted((p for p in pods if not p.is_leaving), key=lambda p: _place(p, busy)):
        to = _destination(pod.tier, counts, tiers)
        if to is None:
            continue
        counts[pod.tier] -= 1
        counts[to] += 1
        changing[pod.name] = TierTarget(to, 0, tiers[to].max_concurrent)
    raised: dict[str, int] = {}
    for pod in pods:
        most = tiers[pod.tier].max_concurrent if pod.tier in tiers else pod.calls_max
        if pod.name in changing or most == pod.calls_max:
            continue
        if most > pod.calls_max:
            raised[pod.name] = most
        else:
            changing[pod.name] = TierTarget(pod.tier, 0, most)
    return Changes(changing, raised)


def _destination(tier: str, counts: Mapping[str, int], tiers: Tiers) -> str | None:
    """The tier that a pod of this tier moves to; None: it stays."""
    if tier in tiers and counts[tier] <= tiers[tier].target:
        return None
    for lacking in assignment_order(tiers):
        if counts.get(lacking, 0) < tiers[lacking].target:
            return lacking
    return None if tier == STANDARD else STANDARD


def _place(pod: Pod, busy: frozenset[str]) -> tuple[bool, bool, str]:
    takes_calls = pod.is_ready and pod.drain_left_s == 0
    return not pod.is_changing, pod.name in busy or bool(pod.named) or not takes_calls, pod.name


class Freeze:
    """Counts pods that vanished unexpectedly within the window: `count`."""

    def __init__(self) -> None:
        self._vanished: deque[tuple[float, str]] = deque()
        self._since_s: float | None = None
        self.count = 0

    def holds_back(self, now_s: float, total: int, gone: list[str]) -> bool:
        """Whether the pods in `gone` must not be removed. The caller passes those that a freeze held back again every
        time."""
        names = {name for _, name in self._vanished}
        self._vanished.extend((now_s, name) for name in gone if name not in names)
        held_back = set(gone) if self._since_s is not None else set()
        while self._vanished and now_s - self._vanished[0][0] > WINDOW_S:
            if self._vanished[0][1] in held_back:
                break
            self._vanished.popleft()
        count = self.count = len(self._vanished)
        # Pods that were removed within the window existed when it began.
        total_before = total + len({name for _, name in self._vanished} - set(gone))
        is_mass = count >= COUNT_MIN and count > total_before * SHARE_MAX
        if not is_mass or not gone:
            self._since_s = None
            return False
        self._since_s = now_s if self._since_s is None else self._since_s
        if now_s - self._since_s > LASTS_MAX_S:
            self._since_s = None
            self._vanished.clear()
            return False
        return True
