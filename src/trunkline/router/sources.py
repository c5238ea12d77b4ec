"""Sources of pods for the pool manager: the cluster, or the pods' own heartbeats."""

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
    """A pod that vanished. `was_expected`: it had announced that it would leave. `uid` or `heard_ms`, the time of its
    last heartbeat, identify it: a successor of the same name, or one with a later heartbeat, is another."""

    name: str
    uid: str = ""
    heard_ms: str = ""
    was_expected: bool = False


@dataclass(frozen=True, slots=True)
class Sighting:
    """What changed at a source since the last poll. `total` is how many pods it has, including the gone ones. `unready`
    exist, and were ready before."""

    present: Sequence[ClusterPod] = ()
    gone: Sequence[GonePod] = ()
    total: int = 0
    unready: Sequence[ClusterPod] = ()


class PodSource(Protocol):
    async def poll(self) -> Sighting:
        """The changes since the last poll. Waits for nothing."""
        ...

    async def list_all(self, known: Sequence[str]) -> Sighting:
        """All pods; `known` are those that the router has."""
        ...


class HeartbeatSource:
    """Pods that register themselves by heartbeat. Reports those whose heartbeats stopped."""

    def __init__(self, bus: Runner, keys: RouterKeys, config: RouterConfig):
        self._bus = bus
        self._keys = keys
        self._config = config

    async def poll(self) -> Sighting:
        total, silent = await router_manager.silent(
            self._bus,
            self._keys,
            ttl_s=self._config.heartbeat_ttl_s,
            gap_max_s=self._config.receiving_gap_max_s,
            waiter_silence_ms=self._config.wait_rule.silence_ms,
        )
        gone = [GonePod(s.pod, heard_ms=s.heard_ms, was_expected=s.was_leaving) for s in silent]
        return Sighting(gone=gone, total=total)

    async def list_all(self, known: Sequence[str]) -> Sighting:
        return await self.poll()
