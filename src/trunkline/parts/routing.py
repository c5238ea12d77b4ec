"""Calls get pods, and their agents a key to them."""

from collections.abc import Sequence
from uuid import UUID

from trunkline.api import router_face
from trunkline.api.hot_routes import HotRoute
from trunkline.api.webhooks import NoStream, Stream
from trunkline.bus import router as bus_router
from trunkline.bus.router_keys import RouterKeys
from trunkline.control.pods import PodAlarms
from trunkline.dispatch import abandoned
from trunkline.dispatch.call_tokens import CallKeys
from trunkline.dispatch.policies import Policies
from trunkline.errors import BusUnavailable
from trunkline.loops.base import Loop
from trunkline.loops.pods import PodGauges
from trunkline.parts.ground import Ground
from trunkline.parts.way_in import WayIn
from trunkline.router.addresses import PodAddresses
from trunkline.router.allocator import Allocated, Allocator, Ended, GivenUp, NoneFree, Waiting
from trunkline.router.assembly import router_config
from trunkline.router.carriers import CarrierWord
from trunkline.router.connector import Answered, Connector, Elsewhere, Overdialled
from trunkline.router.management import manage
from trunkline.router.notes import AllocationNotes
from trunkline.router.pods import Pods
from trunkline.router.registry import Registry
from trunkline.router.resumption import Resumer
from trunkline.router.slots import SlotProposer
from trunkline.router.streams import StreamKeys
from trunkline.store.agents import SlotRule
from trunkline.store.attempts import CallOwner
from trunkline.telemetry import get_logger

log = get_logger(__name__)


class Routing:
    def __init__(self, ground: Ground, way_in: WayIn):
        settings, database, bus = ground.settings, ground.database, ground.bus
        config = router_config(settings)
        stream_keys = StreamKeys.from_secrets(ground.secrets)
        self._bus = bus
        self._answers_database = ground.answers_database
        self._policies = Policies()
        self.ended_ttl_s = config.ended_ttl_s
        self.is_open = settings.router.is_open
        self._call_time_limit_s = settings.carrier.time_limit_s
        self.keys = RouterKeys(settings.router_key_prefix)
        self.call_keys = CallKeys.from_secrets(ground.secrets)
        self.notes = AllocationNotes(database)
        self.addresses = PodAddresses(database)
        self.allocator = Allocator(bus, self.keys, stream_keys, config, ground.answers_database, self.notes)
        self.connector = Connector(
            self.allocator,
            self.addresses,
            ground.answers_database,
            ground.clock,
            Resumer(self.allocator, bus, self.keys, ground.answers_database),
            are_agents_elsewhere=settings.router.agents == "elsewhere",
        )
        self.slot_rule = SlotRule(config.callers_of, config.wait_rule.silence_ms / 1000)
        self.slots = SlotProposer(bus, self.keys, database, config)
        self.registry = Registry(database, bus, self.keys, config)
        self.pods = Pods(
            bus,
            self.keys,
            stream_keys,
            config,
            database,
            self.registry,
            two_clusters=PodAlarms(database).two_clusters,
        )
        self.management = manage(
            settings,
            config,
            bus,
            self.keys,
            database,
            ground.clock,
            self.pods,
            CarrierWord(database, way_in.carriers).is_over,
        )
        self.loops: list[Loop] = [*self.management.loops, self.registry, PodGauges(self.pods)]
        # Whoever answers carriers or other users of the router, whatever its roles.
        self.answer_loops: list[Loop] = [self.notes, self.addresses]

    def routes(self) -> list[HotRoute]:
        return router_face.hot_routes(
            self.allocator,
            self.pods,
            is_leader=lambda: self.management.manager.is_leader,
            is_open=self.is_open,
            addresses=self.addresses,
            call_time_limit_s=self._call_time_limit_s,
        )

    async def find_stream(self, call: Answered) -> Stream | NoStream:
        match await self.connector.connect(call):
            case Allocated() as pod:
                # Three, because Exotel takes no more: whose call it is stands in the stream's first frame.
                key = self.call_keys.sign(call.attempt_id, call.call_id, pod.turn)
                parameters = {"attempt": str(call.attempt_id), "token": pod.token, "key": key}
                if pod.turn:
                    parameters["resumed"] = str(pod.turn)
                return Stream(pod.ws_url, parameters, pod.turn)
            case NoneFree(is_known=is_known):
                return NoStream("busy" if is_known else "unknown")
            case Waiting():
                return NoStream("hold")
            case Overdialled(owner=owner, may_wait=may_wait):
                return await self._abandoned(owner, may_wait=may_wait)
            case Elsewhere():
                return NoStream("elsewhere")
            case GivenUp():
                return NoStream("given_up")
            case Ended():
                return NoStream("ended")

    async def _abandoned(self, owner: CallOwner, *, may_wait: bool) -> NoStream:
        async with self._answers_database.connection() as conn:
            told = await abandoned.told(conn, self._policies, owner)
        return NoStream("hold" if may_wait else "busy", told.message, told.wait_max_s)

    async def free(self, attempt_ids: Sequence[UUID]) -> None:
        """These attempts are over, and their rows with them: Valkey learns that their slots are free."""
        if not attempt_ids:
            return
        try:
            await bus_router.free(
                self._bus, self.keys, [str(each) for each in attempt_ids], tombstone_s=self.ended_ttl_s
            )
        except BusUnavailable as error:
            log.warning("router.release_lost", calls=len(attempt_ids), reason=str(error))
