"""What a careful person with paper would know of the router: pods, the calls that they hold, and who may have which.

Pods are honest: they tell at once what changes. `held` is what the router was told or decided, `named` what a pod said
last; what either of them has counts as load.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trunkline.settings.tiers import Tiers

COMMON = ("standard", "overflow", "basic")


@dataclass
class PodModel:
    boot: int = 1
    sequence: int = 0
    # The calls whose streams it has.
    calls: set[str] = field(default_factory=set)
    named: set[str] = field(default_factory=set)
    is_draining: bool = False
    # Heard since memory was lost the last time.
    is_heard: bool = False


@dataclass(frozen=True)
class Place:
    """A tier as it is published: `most` calls of one pod."""

    is_shared: bool
    most: int


@dataclass
class RouterModel:
    pods: dict[str, PodModel] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)
    connecting: dict[str, str] = field(default_factory=dict)
    tombstones: set[str] = field(default_factory=set)
    is_rebuilt: bool = True
    # Postgres: calls whose allocation ended, and the tier of each pod.
    ended: set[str] = field(default_factory=set)
    tiers: dict[str, str] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)

    def load(self, pod: str) -> int:
        return len({call for call, holder in self.held.items() if holder == pod} | self.pods[pod].named)

    def may_serve(self, pod: str) -> bool:
        model = self.pods[pod]
        return model.is_heard and not model.is_draining

    def is_free(self, pod: str) -> bool:
        place = self.places[self.tiers[pod]]
        return self.may_serve(pod) and self.load(pod) < place.most

    def chain(self, first: str) -> list[str]:
        wanted = first if first in self.places else "standard"
        return [tier for tier in dict.fromkeys((wanted, *COMMON)) if tier in self.places]

    def candidates(self, first: str) -> set[str]:
        """The pods of which one must be given: of the first tier that has a free one, the least loaded."""
        for tier in self.chain(first):
            free = [pod for pod in self.pods if self.tiers[pod] == tier and self.is_free(pod)]
            if free:
                least = min(map(self.load, free))
                return {pod for pod in free if self.load(pod) == least}
        return set()

    def end(self, call: str) -> None:
        if self.held.pop(call, None) is not None:
            self.ended.add(call)

    def lose(self, pod: str) -> None:
        """Its process died: its calls are nobody's, and may have another pod."""
        for call in [call for call, holder in self.held.items() if holder == pod]:
            self.end(call)
            self.connecting.pop(call, None)
        self.pods[pod].calls.clear()

    def heard(self, pod: str) -> None:
        """A heartbeat: what it named and names no more has ended. While memory is lost and Postgres has not been read,
        what it names and nobody knows of is its own."""
        model = self.pods[pod]
        for call in model.named - model.calls:
            if self.held.get(call) == pod:
                self.end(call)
                self.tombstones.add(call)
        model.named = set(model.calls)
        model.is_heard = True
        if self.is_rebuilt:
            return
        for call in sorted(model.calls - self.held.keys() - self.tombstones):
            if sum(holder == pod for holder in self.held.values()) < self.places[self.tiers[pod]].most:
                self.held[call] = pod

    def forget(self) -> None:
        """Memory is lost. The pods and Postgres know what they knew."""
        self.held.clear()
        self.tombstones.clear()
        self.is_rebuilt = False
        for model in self.pods.values():
            model.named, model.is_draining, model.is_heard = set(), False, False


def places_of(published: Mapping[str, str]) -> dict[str, Place]:
    """As `voice:tiers` says it: `e|target|1` or `s|target|max`."""
    texts = {tier: text.split("|") for tier, text in published.items() if not tier.startswith("#")}
    return {tier: Place(kind == "s", int(most)) for tier, (kind, _, most) in texts.items()}


def is_balanced(tiers: Tiers, sizes: Mapping[str, int], order: Sequence[str]) -> bool:
    """No tier lacks a pod while another one has more than its target."""
    lacks = any(sizes.get(tier, 0) < tiers[tier].target for tier in order)
    has_more = any(count > (tiers[tier].target if tier in tiers else 0) for tier, count in sizes.items())
    return not (lacks and has_more)
