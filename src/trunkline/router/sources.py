"""Who says which pods there are: the cluster, or the pods themselves. The manager acts on a source's word."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from trunkline.bus import router_manager
from trunkline.bus.keys import RouterKeys
from trunkline.bus.router import Runner
from trunkline.bus.router_manager import ClusterPod
from trunkline.router.config import RouterConfig


@dataclass(frozen=True, slots=True)
class GonePod:
    """A pod that is not there any more. `was_expected`: it had said that it would leave. `uid` or `heard_ms` name
    the one that is meant: a successor of the same name, or one that spoke again, is another."""

    name: str
    uid: str = ""
    heard_ms: str = ""
    was_expected: bool = False


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a source saw since it was asked last. `total` is how many pods it knows of, the gone ones among them.
    `unready` are there and were ready before."""

    present: Sequence[ClusterPod] = ()
    gone: Sequence[GonePod] = ()
    total: int = 0
    unready: Sequence[ClusterPod] = ()


class PodSource(Protocol):
    async def look(self) -> Sighting:
        """What is new. Waits for nothing."""
        ...

    async def look_at_all(self, known: Sequence[str]) -> Sighting:
        """Everything; `known` are the pods that the router has."""
        ...


class HeartbeatSource:
    """Pods that register themselves. They come by their heartbeats; here is seen who fell silent."""

    def __init__(self, bus: Runner, keys: RouterKeys, config: RouterConfig):
        self._bus = bus
        self._keys = keys
        self._config = config

    async def look(self) -> Sighting:
        total, silent = await router_manager.silent(
            self._bus,
            self._keys,
            ttl_s=self._config.heartbeat_ttl_s,
            gap_max_s=self._config.hearing_gap_max_s,
            waiter_silence_ms=self._config.wait_rule.silence_ms,
        )
        gone = [GonePod(s.pod, heard_ms=s.heard_ms, was_expected=s.was_leaving) for s in silent]
        return Sighting(gone=gone, total=total)

    async def look_at_all(self, known: Sequence[str]) -> Sighting:
        return await self.look()
