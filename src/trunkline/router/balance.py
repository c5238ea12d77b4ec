"""Selects the pods that must change their tier or their maximum to match the config. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trunkline.settings.tiers import STANDARD, Tiers, assignment_order
from trunkline.store.pods import Pod, TierTarget


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
