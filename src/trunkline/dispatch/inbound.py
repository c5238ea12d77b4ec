"""Inbound calls are admitted on the number's channels, or refused as its owner has configured.

The number is locked against dials, and the call takes the lowest free channel under the same unique index: an inbound
and an outbound call never share a channel, whichever process crashes. Valkey is updated afterwards; if that fails,
Postgres refuses its next grant of that channel.
"""

from dataclasses import dataclass
from typing import Literal
from uuid import UUID, uuid5

from trunkline.bus import channels, epoch
from trunkline.bus.connection import Bus
from trunkline.errors import BusUnavailable
from trunkline.model import Holder
from trunkline.store import inbound
from trunkline.store.database import Connection, Database
from trunkline.store.inbound import Arrival, RungNumber
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

_NAMESPACE = UUID("5b0c1f0e-2f0f-4d5b-9a55-6f3a0c8d4e21")

Reason = Literal["CAPACITY_REJECTED", "NOT_ALLOWED", "NUMBER_OFF", "NUMBER_UNKNOWN", "NO_MERCHANT"]


@dataclass(frozen=True, slots=True)
class Taken:
    """The call has a channel. `is_over`: the carrier repeated the webhook of a call that has ended."""

    attempt_id: UUID
    merchant_id: str
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class Turned:
    """The call is refused. `otherwise` is what the number's owner has configured for the caller."""

    reason: Reason
    otherwise: Literal["reject", "message", "redirect"] = "reject"
    message: str = ""
    redirect_to: str = ""


def inbound_attempt_id(carrier: str, call_id: str) -> UUID:
    """The attempt id of an inbound call is made from the call's id: every webhook of it finds the same attempt."""
    return uuid5(_NAMESPACE, f"{carrier}\n{call_id}")


class Inbound:
    def __init__(self, database: Database, bus: Bus, identity: str):
        self._database = database
        self._bus = bus
        self._identity = identity

    async def admit(self, carrier: str, account: str, call_id: str, to: str, from_: str) -> Taken | Turned:
        """Idempotent: a repeated webhook gets the result of the first."""
        arrival = Arrival(inbound_attempt_id(carrier, call_id), carrier, account, call_id, to, from_)
        async with self._database.transaction() as tx:
            result, holder = await self._decide(tx, arrival)
        if holder is not None:
            try:
                await epoch.ensure(self._bus)
                await channels.hold(self._bus, [holder])
            except BusUnavailable as error:
                log.warning("inbound.bus_unavailable", error=str(error))
        label = result.reason if isinstance(result, Turned) else "TAKEN"
        metrics.INBOUND_CALLS.labels(carrier, label).inc()
        return result

    async def _decide(self, tx: Connection, arrival: Arrival) -> tuple[Taken | Turned, Holder | None]:
        number = await inbound.lock_number(tx, arrival)
        if number is None:
            log.warning("inbound.number_unknown", carrier=arrival.carrier, account=arrival.account)
            return Turned("NUMBER_UNKNOWN"), None
        before = await inbound.known(tx, arrival)
        if before is not None and before.state == "rejected":
            return _turned(number, _reason(before.end_reason)), None
        if before is not None:
            return Taken(before.id, before.merchant_id, is_over=before.state == "ended"), None
        if number.merchant_id is None:
            log.error("inbound.no_merchant", number_id=str(number.id))
            return _turned(number, "NO_MERCHANT"), None
        refusal = _refusal(number, arrival.from_)
        channel_no = None if refusal else await inbound.take(tx, arrival, number, self._identity)
        if channel_no is None:
            reason = refusal or "CAPACITY_REJECTED"
            await inbound.refuse(tx, arrival, number, self._identity, reason)
            return _turned(number, reason), None
        taken = Taken(arrival.attempt_id, number.merchant_id)
        return taken, Holder(arrival.attempt_id, number.id, channel_no)


def _refusal(number: RungNumber, from_: str) -> Reason | None:
    """The reason to refuse a caller even if a channel is free."""
    if number.status != "active":
        return "NUMBER_OFF"
    match number.admits:
        case "nobody":
            return "NOT_ALLOWED"
        case "whitelist" if from_ not in number.whitelist:
            return "NOT_ALLOWED"
        case _:
            return None


def _turned(number: RungNumber, reason: Reason) -> Turned:
    match number.otherwise:
        case "message":
            return Turned(reason, "message", message=number.message or "")
        case "redirect":
            return Turned(reason, "redirect", redirect_to=number.redirect_to or "")
        case _:
            return Turned(reason)


def _reason(text: str | None) -> Reason:
    known: tuple[Reason, ...] = ("NOT_ALLOWED", "NUMBER_OFF", "NO_MERCHANT")
    return next((reason for reason in known if reason == text), "CAPACITY_REJECTED")
