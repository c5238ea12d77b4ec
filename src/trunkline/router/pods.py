"""Pods that register themselves by heartbeat."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from trunkline.bus import router as bus_router
from trunkline.bus.router import Beat, PodView, PoolCount, Runner
from trunkline.bus.router_keys import RouterKeys
from trunkline.router.config import STANDARD, RouterConfig
from trunkline.router.streams import StreamKeys


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A pod's own word: where it is, which calls it holds, and whether it is leaving."""

    pod: str
    boot_id: str
    sequence: int
    ip: str
    port: int
    version: str = ""
    base_url: str = ""
    calls: Sequence[str] = ()
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Heard:
    """The router's answer. `call_sid` is the call that has this pod, connected or not; '' if there is none."""

    tier: str
    draining: bool
    call_sid: str
    secrets: Sequence[bytes] = field(repr=False)


class Pods:
    def __init__(self, bus: Runner, keys: RouterKeys, stream_keys: StreamKeys, config: RouterConfig):
        self._bus = bus
        self._keys = keys
        self._stream_keys = stream_keys
        self._config = config

    async def heartbeat(self, beat: Heartbeat) -> Heard:
        said = Beat(
            pod=beat.pod,
            boot_id=beat.boot_id,
            sequence=beat.sequence,
            calls=beat.calls,
            leaving=beat.draining,
            fields={"ip": beat.ip, "port": beat.port, "version": beat.version, "base_url": beat.base_url},
        )
        known = await bus_router.heartbeat(
            self._bus,
            self._keys,
            said,
            new_tier=STANDARD,
            lease_ttl_s=self._config.lease_ttl_s,
            ended_ttl_s=self._config.ended_ttl_s,
        )
        secrets = self._stream_keys.pod_secrets(beat.pod)
        return Heard(known.tier, known.draining, known.call_sid, secrets)

    async def expire(self) -> list[str]:
        """Forget the pods that fell silent. Any router may run it, as often as it likes."""
        return await bus_router.expire(
            self._bus,
            self._keys,
            ttl_s=self._config.heartbeat_ttl_s,
            gap_max_s=self._config.hearing_gap_max_s,
        )

    async def status(self) -> tuple[int, list[PoolCount]]:
        """Calls that have a pod, and the pools."""
        return await bus_router.status(self._bus, self._keys, self._config.tiers)

    async def find(self, pod: str) -> PodView | None:
        return await bus_router.pod_view(self._bus, self._keys, pod)
