"""Pods: what they say of themselves, and what is known of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from trunkline.bus import router as bus_router
from trunkline.bus import router_views
from trunkline.bus.router import Beat, BeatRule, Registration, Runner, TierWanted
from trunkline.bus.router_keys import RouterKeys
from trunkline.bus.router_views import CallView, Counts, Drained, PodView
from trunkline.crashpoint import crash_point
from trunkline.router.config import RouterConfig
from trunkline.router.journal import Journal, NoJournal
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
    """The router's answer. `calls` have this pod, connected or not. `again_in_s`: when to speak again, 0: as usual."""

    tier: str
    draining: bool
    calls: Sequence[str]
    max_concurrent: int
    again_in_s: float
    secrets: Sequence[bytes] = field(repr=False)


class Pods:
    def __init__(
        self,
        bus: Runner,
        keys: RouterKeys,
        stream_keys: StreamKeys,
        config: RouterConfig,
        journal: Journal | None = None,
    ):
        self._bus = bus
        self._keys = keys
        self._stream_keys = stream_keys
        self._config = config
        self._journal = journal or NoJournal()

    async def heartbeat(self, beat: Heartbeat) -> Heard:
        said = Beat(
            pod=beat.pod,
            boot_id=beat.boot_id,
            sequence=beat.sequence,
            calls=beat.calls,
            leaving=beat.draining,
            fields={"ip": beat.ip, "port": beat.port, "version": beat.version, "base_url": beat.base_url},
        )
        rule = BeatRule(
            durable_tier=None,
            may_register=self._config.by_heartbeat,
            lease_ttl_s=self._config.lease_ttl_s,
            ended_ttl_s=self._config.ended_ttl_s,
            settle_ms=round(self._config.settle_s * 1000),
            tiers=self._config.tiers_text,
        )
        known, is_new = await self._register(said, rule)
        crash_point("router.after_heartbeat")
        if known.tier:
            self._journal.tier(beat.pod, known.tier, is_new=is_new)
        secrets = self._stream_keys.pod_secrets(beat.pod)
        return Heard(
            known.tier, known.draining, known.calls, known.max_concurrent, known.again_ms / 1000, secrets
        )

    async def _register(self, said: Beat, rule: BeatRule) -> tuple[Registration, bool]:
        """What is known of the pod, and whether it was unknown before."""
        known = await bus_router.heartbeat(self._bus, self._keys, said, rule)
        is_new = False
        while isinstance(known, TierWanted):
            is_new = True
            # Afresh: another process may have moved the pod since this one last heard of it.
            rule = replace(rule, durable_tier=await self._journal.tier_of(said.pod, afresh=True))
            known = await bus_router.heartbeat(self._bus, self._keys, said, rule)
        return known, is_new

    async def drain(self, pod: str) -> Drained | None:
        """No new calls for `DRAINING_TTL`; the live ones go on."""
        drained = await router_views.drain(self._bus, self._keys, pod, self._config.draining_ttl_s)
        crash_point("router.after_drain")
        return drained

    async def undrain(self, pod: str) -> Drained | None:
        return await router_views.drain(self._bus, self._keys, pod, 0)

    async def counts(self) -> Counts:
        return await router_views.counts(self._bus, self._keys)

    async def find(self, pod: str) -> PodView | None:
        return await router_views.pod_view(self._bus, self._keys, pod)

    async def pods(self, first: int, count: int) -> list[PodView]:
        return await router_views.pods(self._bus, self._keys, first, count)

    async def calls(self, first: int, count: int) -> list[CallView]:
        return await router_views.calls(self._bus, self._keys, first, count)
