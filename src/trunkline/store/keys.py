"""API keys, by their hashes. The keys themselves are nowhere in the database."""

from uuid import UUID

from trunkline.schema.keys import ApiKey
from trunkline.store.database import Connection
from trunkline.store.sql import Area, query
from trunkline.store.tables import FIRST_ID, Table

_SQL = Area("keys")

KEYS = Table(ApiKey, get=_SQL.get, select=_SQL.list, insert=query("keys/insert"), start=FIRST_ID)


async def by_hash(tx: Connection, key_hash: bytes) -> ApiKey | None:
    return KEYS.row(await tx.fetchrow(_SQL.by_hash, key_hash))


async def revoke(tx: Connection, key_id: UUID) -> ApiKey | None:
    return KEYS.row(await tx.fetchrow(_SQL.revoke, key_id))
