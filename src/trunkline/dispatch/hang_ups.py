"""Ends calls by request: an abort with hang-up, or a call that reappeared beside a newer one.

The request is in Postgres, so it outlives every process. This loop sends it to the carrier until the call has ended:
its end webhook, like that of any other call, frees the channel and settles the lead.
"""

import asyncio

from trunkline.loops.base import Loop
from trunkline.states import LIVE, AttemptState
from trunkline.store import hang_ups
from trunkline.store.database import Database
from trunkline.store.hang_ups import HangUp
from trunkline.telemetry import bind, get_logger
from trunkline.telephony.carrier import AlreadyOver, HangUpAsked, NoSuchCall
from trunkline.telephony.carrier_registry import CarrierConfigError
from trunkline.telephony.directory import CarrierDirectory

log = get_logger(__name__)

BATCH = 20
LEASE_S = 30.0
# The carrier accepted the request: its end webhook should come long before this.
REPEAT_S = 30.0
# The carrier could not be reached.
RETRY_S = 2.0
# The carrier cannot end calls, and a lookup costs a request of the same quota as a dial.
RECHECK_S = 60.0

_OVER = frozenset({AttemptState.ENDED, AttemptState.REJECTED})


class HangUps(Loop):
    name = "hang_ups"

    def __init__(self, database: Database, carriers: CarrierDirectory):
        super().__init__(interval_s=0.5)
        self._database = database
        self._carriers = carriers

    async def run_once(self) -> int:
        """Request the end of due calls from their carriers. Returns how many."""
        async with self._database.connection() as conn:
            due = await hang_ups.claim(conn, limit=BATCH, lease_s=LEASE_S)
        if not due:
            return 0
        delays_s = await asyncio.gather(*map(self._end, due))
        async with self._database.connection() as conn:
            await hang_ups.reschedule(conn, dict(zip((each.id for each in due), delays_s, strict=True)))
        return len(due)

    async def _end(self, request: HangUp) -> float | None:
        """One request. Returns the delay before the next time; None for never."""
        if request.state in _OVER or request.carrier_call_id is None:
            return None
        with bind(attempt_id=request.id, lead_id=request.lead_id):
            try:
                carrier = self._carriers.get(request.carrier, request.account)
            except CarrierConfigError as error:
                log.error("call.no_account", carrier=request.carrier, error=str(error))
                return RETRY_S
            result = await carrier.hang_up(request.carrier_call_id)
            log.info("call.hang_up_requested", call_id=request.carrier_call_id, result=type(result).__name__)
        match result:
            case HangUpAsked():
                return REPEAT_S
            case AlreadyOver() | NoSuchCall():
                # A live attempt still needs its end. Any other has nothing left to settle.
                return REPEAT_S if request.state in LIVE else None
            case _:
                return RETRY_S if carrier.limits.can_hang_up else RECHECK_S
