"""Asking a carrier whether a call is over, for calls that never came to the pod they were given."""

from trunkline.store import router as store
from trunkline.store.database import UNAVAILABLE, Database
from trunkline.telephony.carrier import CallView, NoSuchCall
from trunkline.telephony.carrier_registry import CARRIERS, CarrierConfigError
from trunkline.telephony.directory import CarrierDirectory


class CarrierStatus:
    def __init__(self, database: Database, carriers: CarrierDirectory):
        self._database = database
        self._carriers = carriers

    async def is_over(self, call_sid: str) -> bool | None:
        """None: it is nobody's call that we know of, or its carrier cannot be asked."""
        try:
            async with self._database.connection() as conn:
                line = await store.account_of_call(conn, list(CARRIERS), call_sid)
        except UNAVAILABLE:
            return None
        if line is None:
            return None
        try:
            carrier = self._carriers.get(line.carrier, line.account)
        except CarrierConfigError:
            return None
        match await carrier.look_up(call_sid):
            case CallView(state=state):
                return state == "ended"
            case NoSuchCall():
                return True
            case _:
                return None
