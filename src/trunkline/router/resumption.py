"""Resumes a call whose stream ended while the call may go on: the carrier requests its next instructions.

released row ─► the agent released the call, or it ended: hang up
live row     ─► the agent was lost: the call goes into its next turn, and gets a pod as any other call does

The pod that lost the call gets it again only after a heartbeat since then: it may be dead, and a person waits. While it
still names the call it takes no other. Afterwards it is a pod like every other, and may get the same call again.
"""

import asyncio
from uuid import UUID

from trunkline.bus import router as bus_router
from trunkline.bus.keys import RouterKeys
from trunkline.bus.router import Runner
from trunkline.errors import BusUnavailable
from trunkline.router.allocator import (
    VALKEY_S,
    Allocated,
    Allocator,
    EngineSilent,
    GivenUp,
    MustHangUp,
    NoneFree,
    PodWait,
)
from trunkline.store import resumptions
from trunkline.store.database import Database
from trunkline.store.resumptions import LostAgent, Resumption
from trunkline.telemetry import get_logger, metrics
from trunkline.telephony.callbacks import TURN_MAX

log = get_logger(__name__)


class Resumer:
    def __init__(self, allocator: Allocator, bus: Runner, keys: RouterKeys, database: Database):
        self._allocator = allocator
        self._bus = bus
        self._keys = keys
        self._database = database

    async def resume(
        self, call_sid: str, attempt_id: UUID, turn: int
    ) -> Allocated | NoneFree | PodWait | MustHangUp | GivenUp:
        """`turn` is that of the ended stream. Idempotent: every request about one stream gets the same pod."""
        try:
            resumption = await self._allocator.ask(self._find(call_sid, attempt_id, turn))
        except EngineSilent as error:
            log.error("router.resume_unwritten", call_id=call_sid, reason=str(error))
            resumption = "exhausted" if turn >= TURN_MAX else LostAgent("", "")
        match resumption:
            case "over":
                metrics.ROUTER_RESUMPTIONS.labels("over").inc()
                return MustHangUp()
            case "exhausted":
                log.error("router.agents_lost", call_id=call_sid, turn=turn)
                metrics.ROUTER_RESUMPTIONS.labels("exhausted").inc()
                return NoneFree()
            case LostAgent(pod=pod, merchant_id=merchant_id):
                if pod is not None:
                    log.warning("router.agent_lost", call_id=call_sid, pod=pod, turn=turn)
                    metrics.ROUTER_RESUMPTIONS.labels("lost").inc()
                    await self._free_slot(attempt_id)
                return await self._allocator.allocate(
                    call_sid, merchant_id, attempt_id=attempt_id, may_wait=True, turn=turn + 1
                )

    async def _find(self, call_sid: str, attempt_id: UUID, turn: int) -> Resumption:
        async with self._database.connection() as conn:
            return await resumptions.resume(conn, attempt_id, call_sid, turn, turn_max=TURN_MAX)

    async def _free_slot(self, attempt_id: UUID) -> None:
        """Before Valkey proposes a pod, or it would propose the lost one. If Valkey does not answer, Postgres picks."""
        try:
            async with asyncio.timeout(VALKEY_S):
                await bus_router.free(self._bus, self._keys, [str(attempt_id)], tombstone_s=0)
        except (BusUnavailable, TimeoutError) as error:
            log.info("router.valkey_not_updated", reason=str(error))
