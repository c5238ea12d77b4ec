"""Accounts at carriers. Their credentials are sealed: this file never sees them open."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from trunkline.store.database import Connection
from trunkline.store.rows import pick, pick_or_none
from trunkline.store.sql import query

_INSERT = query("accounts/insert")
_GET = query("accounts/get")
_LOCK = query("accounts/lock")
_LIST = query("accounts/list")
_ACTIVE = query("accounts/active")
_UPDATE = query("accounts/update")
_RESEAL = query("accounts/reseal")
_DELETE = query("accounts/delete")


@dataclass(frozen=True, slots=True)
class Account:
    id: UUID
    carrier: str
    name: str
    credentials: bytes = field(repr=False)
    base_url: str | None
    starts_per_s: float | None
    status: str
    version: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class NewAccount:
    id: UUID
    carrier: str
    name: str
    credentials: bytes = field(repr=False)
    base_url: str | None
    starts_per_s: float | None
    status: str


@dataclass(frozen=True, slots=True)
class AccountChange:
    """None means "as it is", but for the values that may be null: those have a flag."""

    credentials: bytes | None = field(default=None, repr=False)
    set_base_url: bool = False
    base_url: str | None = None
    set_starts_per_s: bool = False
    starts_per_s: float | None = None
    status: str | None = None


async def insert(tx: Connection, new: NewAccount) -> Account | None:
    row = await tx.fetchrow(
        _INSERT,
        new.id,
        new.carrier,
        new.name,
        new.credentials,
        new.base_url,
        new.starts_per_s,
        new.status,
    )
    return pick_or_none(Account, row)


async def get(conn: Connection, account_id: UUID) -> Account | None:
    return pick_or_none(Account, await conn.fetchrow(_GET, account_id))


async def lock(tx: Connection, account_id: UUID) -> Account | None:
    return pick_or_none(Account, await tx.fetchrow(_LOCK, account_id))


async def list_accounts(conn: Connection, *, carrier: str | None, after: UUID, limit: int) -> list[Account]:
    return [pick(Account, row) for row in await conn.fetch(_LIST, after, carrier, limit)]


async def active(conn: Connection) -> Sequence[Account]:
    return [pick(Account, row) for row in await conn.fetch(_ACTIVE)]


async def update(tx: Connection, account_id: UUID, change: AccountChange) -> Account | None:
    row = await tx.fetchrow(
        _UPDATE,
        account_id,
        change.credentials,
        change.set_base_url,
        change.base_url,
        change.set_starts_per_s,
        change.starts_per_s,
        change.status,
    )
    return pick_or_none(Account, row)


async def reseal(conn: Connection, account_id: UUID, before: bytes, after: bytes) -> None:
    await conn.execute(_RESEAL, account_id, before, after)


async def remove(tx: Connection, account_id: UUID) -> bool:
    """False if a number dials with it."""
    return await tx.fetchval(_DELETE, account_id) is not None
