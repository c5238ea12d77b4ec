"""Carrier accounts. Their credentials are sealed: this file never has them in plain text."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from trunkline.store.database import Connection
from trunkline.store.rows import pick, pick_or_none
from trunkline.store.sql import Area

_SQL = Area("accounts")


@dataclass(frozen=True, slots=True)
class StoredAccount:
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
    """None means unchanged, but for nullable values: those have a flag."""

    credentials: bytes | None = field(default=None, repr=False)
    set_base_url: bool = False
    base_url: str | None = None
    set_starts_per_s: bool = False
    starts_per_s: float | None = None
    status: str | None = None


async def insert(tx: Connection, new: NewAccount) -> StoredAccount | None:
    row = await tx.fetchrow(
        _SQL.insert,
        new.id,
        new.carrier,
        new.name,
        new.credentials,
        new.base_url,
        new.starts_per_s,
        new.status,
    )
    return pick_or_none(StoredAccount, row)


async def get(conn: Connection, account_id: UUID) -> StoredAccount | None:
    return pick_or_none(StoredAccount, await conn.fetchrow(_SQL.get, account_id))


async def lock(tx: Connection, account_id: UUID) -> StoredAccount | None:
    return pick_or_none(StoredAccount, await tx.fetchrow(_SQL.lock, account_id))


async def list_accounts(
    conn: Connection, *, carrier: str | None, after: UUID, limit: int
) -> list[StoredAccount]:
    return [pick(StoredAccount, row) for row in await conn.fetch(_SQL.list, after, carrier, limit)]


async def active(conn: Connection) -> Sequence[StoredAccount]:
    return [pick(StoredAccount, row) for row in await conn.fetch(_SQL.active)]


async def update(tx: Connection, account_id: UUID, change: AccountChange) -> StoredAccount | None:
    row = await tx.fetchrow(
        _SQL.update,
        account_id,
        change.credentials,
        change.set_base_url,
        change.base_url,
        change.set_starts_per_s,
        change.starts_per_s,
        change.status,
    )
    return pick_or_none(StoredAccount, row)


async def reseal(conn: Connection, account_id: UUID, before: bytes, after: bytes) -> None:
    await conn.execute(_SQL.reseal, account_id, before, after)


async def remove(tx: Connection, account_id: UUID) -> bool:
    """False if a number uses it."""
    return await tx.fetchval(_SQL.delete, account_id) is not None
