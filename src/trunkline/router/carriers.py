"""Queries the carrier whether a call has ended, for calls that never reached the pod allocated to them."""

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
        """None: Postgres has no such call, or its carrier does not answer."""
        try:
            async with self._database.connection() as conn:
                account = await store.account_of_call(conn, list(CARRIERS), call_sid)
        except UNAVAILABLE:
            return None
        if account is None:
            return None
        try:
            carrier = self._carriers.get(account.carrier, account.account)
        except CarrierConfigError:
            return None
        match await carrier.look_up(call_sid):
            case CallView(state=state):
                return state == "ended"
            case NoSuchCall():
                return True
            case _:
                return None
