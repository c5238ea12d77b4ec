"""Ends calls that somebody wants ended: an abort that asked for it, a call that surfaced beside a newer one.

The wish is in Postgres, so it outlives every process. The carrier is asked until the call is known to be over: its end
webhook, like that of any other call, is what frees the channel and settles the lead.
"""

import asyncio

from trunkline.loops.base import Loop
from trunkline.states import LIVE, AttemptState
from trunkline.store import hang_ups
from trunkline.store.database import Database
from trunkline.store.hang_ups import HangUp
from trunkline.telemetry import bind, get_logger
from trunkline.telephony.carrier import AlreadyOver, HangUpAsked, HangUpResult, NoSuchCall
from trunkline.telephony.carrier_registry import CarrierConfigError
from trunkline.telephony.directory import CarrierDirectory

log = get_logger(__name__)

BATCH = 20
LEASE_S = 30.0
# The carrier took the request: its end webhook should be here long before.
ASKED_AGAIN_S = 30.0
# It could not be asked.
RETRY_S = 2.0
# It ends no call by request, and looking whether it ended costs a request of the same quota as a dial.
LOOK_AGAIN_S = 60.0

_OVER = frozenset({AttemptState.ENDED, AttemptState.REJECTED})


class HangUps(Loop):
    name = "hang_ups"

    def __init__(self, database: Database, carriers: CarrierDirectory, interval_s: float = 0.5):
        super().__init__(interval_s)
        self._database = database
        self._carriers = carriers

    async def run_once(self) -> int:
        """Ask for the end of what is due; how many calls that was."""
        async with self._database.connection() as conn:
            due = await hang_ups.claim(conn, limit=BATCH, lease_s=LEASE_S)
        if not due:
            return 0
        delays_s = await asyncio.gather(*map(self._end, due))
        async with self._database.connection() as conn:
            await hang_ups.ask_again(conn, dict(zip((each.id for each in due), delays_s, strict=True)))
        return len(due)

    async def _end(self, wanted: HangUp) -> float | None:
        """Ask once. How long to wait before the next time; None for never."""
        if wanted.state in _OVER or wanted.carrier_call_id is None:
            return None
        with bind(attempt_id=wanted.id, lead_id=wanted.lead_id):
            result = await self._ask(wanted, wanted.carrier_call_id)
            log.info("call.hang_up_asked", call_id=wanted.carrier_call_id, result=type(result).__name__)
        match result:
            case HangUpAsked():
                return ASKED_AGAIN_S
            case AlreadyOver() | NoSuchCall():
                # A live one still has to hear of its end. Any other has nothing left to settle.
                return ASKED_AGAIN_S if wanted.state in LIVE else None
            case _:
                return RETRY_S if self._can_hang_up(wanted) else LOOK_AGAIN_S

    def _can_hang_up(self, wanted: HangUp) -> bool:
        try:
            return self._carriers.get(wanted.carrier, wanted.account).limits.can_hang_up
        except CarrierConfigError:
            return True

    async def _ask(self, wanted: HangUp, call_id: str) -> HangUpResult | None:
        try:
            carrier = self._carriers.get(wanted.carrier, wanted.account)
        except CarrierConfigError as error:
            log.error("call.no_account", carrier=wanted.carrier, error=str(error))
            return None
        return await carrier.hang_up(call_id)
