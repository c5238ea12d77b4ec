"""Merchants' tiers, and the owners of calls."""

from collections.abc import Sequence

from trunkline.store.database import Connection
from trunkline.store.sql import Area

_SQL = Area("router")


async def merchants(conn: Connection) -> dict[str, str]:
    """Merchant -> its config as JSON."""
    return {row["merchant_id"]: row["config"] for row in await conn.fetch(_SQL.merchants)}


async def set_merchant(conn: Connection, merchant_id: str, config: str) -> None:
    await conn.execute(_SQL.set_merchant, merchant_id, config)


async def adopt_merchant(conn: Connection, merchant_id: str, config: str, before: str) -> None:
    """Only if it is still as it was `before`; '' stands for none."""
    await conn.execute(_SQL.adopt_merchant, merchant_id, config, before)


async def remove_merchant(conn: Connection, merchant_id: str) -> bool:
    """False: it had none."""
    return bool(await conn.execute(_SQL.remove_merchant, merchant_id) != "DELETE 0")


async def account_of_call(conn: Connection, carriers: Sequence[str], call_sid: str) -> tuple[str, str] | None:
    """The carrier and the account of this call, if it is one of ours."""
    row = await conn.fetchrow(_SQL.account_of_call, list(carriers), call_sid)
    return (row["carrier"], row["account"]) if row else None
