"""Queries what calls cost, where no webhook reports it: Twilio's list has the price some time after the end.

It reads pages of the calls that ended in a period of a minute or more: at 70 calls a second that is four requests a
minute, where a lookup per call would be 4,200. A price may not be there yet, so every period is read twice.
"""

from trunkline.loops.base import Loop
from trunkline.store import carrier_costs
from trunkline.store.carrier_costs import CostReading
from trunkline.store.database import Database
from trunkline.telemetry import get_logger
from trunkline.telephony.carrier import Unavailable
from trunkline.telephony.carrier_registry import PRICES_LATER
from trunkline.telephony.directory import CarrierDirectory

log = get_logger(__name__)

LAGS_S = (120, 3600)
LEASE_S = 600.0


class CarrierCosts(Loop):
    name = "carrier_costs"

    def __init__(self, database: Database, carriers: CarrierDirectory):
        super().__init__(interval_s=60.0)
        self._database = database
        self._carriers = carriers

    async def run_once(self) -> int:
        """Returns how many calls got their price."""
        async with self._database.connection() as conn:
            readings = await carrier_costs.claim(conn, PRICES_LATER, LAGS_S, lease_s=LEASE_S)
        return sum([await self._read(reading) for reading in readings])

    async def _read(self, reading: CostReading) -> int:
        kept, is_complete = 0, True
        carrier = self._carriers.find(reading.carrier, reading.account)
        if carrier is None:
            return 0  # the lease expires
        async for page in carrier.ended_calls(reading.since, reading.until):
            if isinstance(page, Unavailable):
                log.warning("costs.list_unavailable", carrier=reading.carrier, reason=page.reason)
                is_complete = False
                break
            costs = {call.call_id: (call.cost.micros, call.cost.currency) for call in page if call.cost}
            async with self._database.connection() as conn:
                kept += await carrier_costs.record(conn, reading.carrier, costs)
        async with self._database.connection() as conn:
            await carrier_costs.done(conn, reading, is_complete=is_complete)
        return kept
