"""Sources of pods for the pool manager: the cluster, or the pods' own heartbeats."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from trunkline.bus import router_manager
from trunkline.bus.router import RouterBus
from trunkline.router.config import SILENCE_S, RouterConfig
from trunkline.router.kubernetes.api import ClusterUnavailable
from trunkline.router.kubernetes.reflector import Reflector
from trunkline.routing import ClusterPod, GonePod
from trunkline.telemetry import get_logger

log = get_logger(__name__)


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

    def __init__(self, bus: RouterBus, config: RouterConfig):
        self._bus = bus
        self._config = config

    async def poll(self) -> Sighting:
        total, silent = await router_manager.silent(
            self._bus,
            ttl_s=self._config.heartbeat_ttl_s,
            gap_max_s=self._config.receiving_gap_max_s,
            waiter_silence_ms=round(SILENCE_S * 1000),
        )
        return Sighting(gone=silent, total=total)

    async def list_all(self, known: Sequence[str]) -> Sighting:
        return await self.poll()


class KubernetesSource:
    """A pod exists when the cluster lists it. A pod whose heartbeats stopped has lost its calls, whatever the cluster
    reports, and is not allocated before its next heartbeat."""

    def __init__(self, reflector: Reflector, heartbeats: HeartbeatSource):
        self._reflector = reflector
        self._heartbeats = heartbeats
        # What the manager last got of each pod, to detect what changed.
        self._reported: dict[str, ClusterPod] = {}

    async def poll(self) -> Sighting:
        changed = self._reflector.take_changes()
        sighting = self._sighting(sorted(changed))
        silent = (await self._heartbeats.poll()).gone
        still_there = [gone for gone in silent if gone.name in self._reflector.pods]
        for gone in still_there:
            self._reported.pop(gone.name, None)
        return Sighting(sighting.present, [*sighting.gone, *still_there], sighting.total, sighting.unready)

    async def list_all(self, known: Sequence[str]) -> Sighting:
        try:
            await self._reflector.list_all()
        except ClusterUnavailable as error:
            log.warning("kubernetes.list_failed", error=str(error))
            return await self.poll()
        self._reflector.take_changes()
        return self._sighting(sorted({*known, *self._reflector.pods, *self._reported}))

    def _sighting(self, names: Sequence[str]) -> Sighting:
        if not self._reflector.is_synced:
            return Sighting()
        present: list[ClusterPod] = []
        unready: list[ClusterPod] = []
        gone: list[GonePod] = []
        for name in names:
            seen = self._reflector.pods.get(name)
            before = self._reported.get(name)
            if seen is None:
                self._reported.pop(name, None)
                gone.append(GonePod(name, before.uid if before else "", was_expected=_was_leaving(before)))
                continue
            pod = seen.pod
            turned_unready = (
                before is not None and before.is_ready and not pod.is_ready and not pod.is_deleting
            )
            (unready if turned_unready else present).append(pod)
            self._reported[name] = pod
        return Sighting(present, gone, len(self._reported) + len(gone), unready)


def _was_leaving(pod: ClusterPod | None) -> bool:
    """A pod that was being deleted or was never ready vanishes as expected."""
    return pod is not None and (pod.is_deleting or not pod.is_ready)
