"""Number pools and the numbers in them."""

from uuid import UUID

from trunkline.schema.numbers import Number, Pool
from trunkline.store.database import Connection
from trunkline.store.sql import Area, query
from trunkline.store.tables import FIRST_ID, InUse, Table, delete

_SQL = Area("numbers")

POOLS = Table(
    Pool,
    get=_SQL.get_pool,
    select=_SQL.list_pools,
    insert=query("numbers/insert_pool"),
    update=query("numbers/update_pool"),
    columns={"overflow_pool": "overflow_pool_id"},
)
NUMBERS = Table(
    Number,
    get=_SQL.get,
    select=_SQL.list,
    insert=query("numbers/insert"),
    update=query("numbers/update"),
    columns={"pool": "pool_id"},
    start=FIRST_ID,
)


async def delete_pool(tx: Connection, pool_id: str) -> InUse | None:
    return await delete(tx, _SQL.delete_pool, pool_id)


async def lock_and_count_held(tx: Connection, number_id: UUID) -> int:
    """Lock the number against dialers until the transaction ends, then count the channels that calls hold.

    Two statements on purpose: the count needs a snapshot from after the lock, or it misses the intent
    that it waited for.
    """
    await tx.execute(_SQL.lock, number_id)
    return int(await tx.fetchval(_SQL.held_channels, number_id))


async def remove(tx: Connection, number_id: UUID) -> None:
    await tx.execute(_SQL.delete, number_id)
