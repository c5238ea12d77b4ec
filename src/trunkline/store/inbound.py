"""Inbound calls: the number they call, the channel they take, and its owner's policy for them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from trunkline.schema.inbound import InboundPolicy, NewInboundPolicy
from trunkline.store.database import Connection
from trunkline.store.rows import pick, pick_or_none
from trunkline.store.sql import Area

_SQL = Area("inbound")


@dataclass(frozen=True, slots=True)
class Arrival:
    """An inbound call to one of our numbers."""

    attempt_id: UUID
    carrier: str
    account: str
    call_id: str
    to: str = field(repr=False)
    from_: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class RungNumber:
    id: UUID
    status: str
    max_channels: int
    admits: str
    whitelist: Sequence[str] = field(repr=False)
    otherwise: str
    message: str | None
    redirect_to: str | None = field(repr=False)
    merchant_id: str | None
    reseller_id: str | None


@dataclass(frozen=True, slots=True)
class KnownCall:
    id: UUID
    merchant_id: str
    state: str
    end_reason: str | None


async def lock_number(tx: Connection, arrival: Arrival) -> RungNumber | None:
    row = await tx.fetchrow(_SQL.lock_number, arrival.to, arrival.carrier, arrival.account)
    return pick_or_none(RungNumber, row)


async def known(tx: Connection, arrival: Arrival) -> KnownCall | None:
    return pick_or_none(KnownCall, await tx.fetchrow(_SQL.known, arrival.carrier, arrival.call_id))


async def take(tx: Connection, arrival: Arrival, number: RungNumber, identity: str) -> int | None:
    """The channel it got, or None. The number is locked."""
    row = await tx.fetchrow(_SQL.take, *_values(arrival, number, identity), number.max_channels)
    return int(row["channel_no"]) if row else None


async def refuse(tx: Connection, arrival: Arrival, number: RungNumber, identity: str, reason: str) -> None:
    await tx.execute(_SQL.refuse, *_values(arrival, number, identity), reason)


def _values(arrival: Arrival, number: RungNumber, identity: str) -> tuple[object, ...]:
    return (
        arrival.attempt_id,
        number.reseller_id,
        number.merchant_id,
        number.id,
        arrival.carrier,
        arrival.account,
        arrival.to,
        arrival.from_,
        arrival.call_id,
        identity,
    )


async def get_policy(conn: Connection, number_id: UUID) -> InboundPolicy | None:
    return pick_or_none(InboundPolicy, await conn.fetchrow(_SQL.get_policy, number_id))


async def put_policy(tx: Connection, number_id: UUID, policy: NewInboundPolicy) -> InboundPolicy:
    row = await tx.fetchrow(
        _SQL.put_policy,
        number_id,
        policy.admits,
        policy.whitelist,
        policy.merchant_id,
        policy.otherwise,
        policy.message,
        policy.redirect_to,
    )
    assert row is not None, "an upsert returns its row"
    return pick(InboundPolicy, row)


async def delete_policy(tx: Connection, number_id: UUID) -> None:
    await tx.execute(_SQL.delete_policy, number_id)
