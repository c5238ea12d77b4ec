"""Calls get pods, and their agents a key to them."""

import asyncio
from uuid import UUID

from trunkline.api import router_face
from trunkline.api.hot_routes import HotRoute
from trunkline.api.webhooks import Stream
from trunkline.bus.router_keys import RouterKeys
from trunkline.dispatch.call_tokens import CallKeys
from trunkline.loops.base import Loop
from trunkline.loops.pod_room import PodCount
from trunkline.loops.pods import PodGauges
from trunkline.parts.ground import Ground
from trunkline.parts.way_in import WayIn
from trunkline.router.allocator import Allocated, Allocator, NoneFree, Waiting
from trunkline.router.assembly import router_config
from trunkline.router.carriers import CarrierWord
from trunkline.router.config import COMMON
from trunkline.router.journal_writer import JournalWriter
from trunkline.router.management import manage
from trunkline.router.pods import Pods
from trunkline.router.streams import StreamKeys
from trunkline.telemetry import get_logger

log = get_logger(__name__)


class Routing:
    def __init__(self, ground: Ground, way_in: WayIn):
        settings, database, bus = ground.settings, ground.database, ground.bus
        config = router_config(settings)
        stream_keys = StreamKeys.from_secrets(ground.secrets)
        self.is_open = settings.router.is_open
        self._call_time_limit_s = settings.carrier.time_limit_s
        self.keys = RouterKeys(settings.router_key_prefix)
        self.call_keys = CallKeys.from_secrets(ground.secrets)
        self.journal = JournalWriter(database)
        self.allocator = Allocator(bus, self.keys, stream_keys, config, self.journal)
        self.pods = Pods(bus, self.keys, stream_keys, config, self.journal)
        self.management = manage(
            settings,
            config,
            bus,
            self.keys,
            database,
            ground.clock,
            self.pods,
            self.journal,
            CarrierWord(database, way_in.carriers).is_over,
        )
        self.loops: list[Loop] = [*self.management.loops, self.journal, PodGauges(self.pods)]

    def routes(self) -> list[HotRoute]:
        return router_face.hot_routes(
            self.allocator,
            self.pods,
            is_leader=lambda: self.management.manager.is_leader,
            is_open=self.is_open,
            call_time_limit_s=self._call_time_limit_s,
        )

    async def find_stream(self, call_id: str, attempt_id: UUID, merchant_id: str) -> Stream | str:
        match await self.allocator.allocate(call_id, merchant_id, may_wait=True):
            case Allocated() as pod:
                # Three, because Exotel takes no more: whose call it is stands in the stream's first frame.
                key = self.call_keys.sign(attempt_id, call_id)
                return Stream(pod.ws_url, {"attempt": str(attempt_id), "token": pod.token, "key": key})
            case NoneFree():
                return "busy"
            case Waiting():
                return "hold"
            case _:
                return "ended"

    async def count(self) -> PodCount:
        counts = await self.pods.counts()
        # What every merchant's call may fall back to; reserved pods do not help the others.
        free = sum(pool.room for pool in counts.pools if pool.tier in COMMON)
        return PodCount(free, free + counts.calls)

    async def release(self, call_ids: list[str]) -> None:
        """The carrier says that these calls are over: the fourth of the ways in which a pod is released."""
        released = await asyncio.gather(*map(self.allocator.release, call_ids), return_exceptions=True)
        lost = [error for error in released if isinstance(error, BaseException)]
        if lost:
            log.warning("router.release_lost", calls=len(lost), reason=str(lost[0]))
