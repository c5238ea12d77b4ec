"""Carrier accounts. Their credentials are sealed: this file never has them in plain text."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from trunkline.store.database import Connection
from trunkline.store.rows import pick
from trunkline.store.sql import Area, query
from trunkline.store.tables import FIRST_ID, Table

_SQL = Area("accounts")


@dataclass(frozen=True, slots=True)
class StoredAccount:
    """An account with its sealed credentials. What the API shows of it is `schema.accounts.Account`."""

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


ACCOUNTS = Table(
    StoredAccount,
    get=_SQL.get,
    select=_SQL.list,
    insert=query("accounts/insert"),
    update=query("accounts/update"),
    start=FIRST_ID,
)


async def lock(tx: Connection, account_id: UUID) -> StoredAccount | None:
    return ACCOUNTS.row(await tx.fetchrow(_SQL.lock, account_id))


async def active(conn: Connection) -> Sequence[StoredAccount]:
    return [pick(StoredAccount, row) for row in await conn.fetch(_SQL.active)]


async def reseal(conn: Connection, account_id: UUID, before: bytes, after: bytes) -> None:
    await conn.execute(_SQL.reseal, account_id, before, after)


async def remove(tx: Connection, account_id: UUID) -> bool:
    """False if a number uses it."""
    return await tx.fetchval(_SQL.delete, account_id) is not None
