"""Merchants' tiers, and whose call a call is."""

from collections.abc import Sequence
from dataclasses import dataclass

from trunkline.store.database import Connection
from trunkline.store.rows import pick_or_none
from trunkline.store.sql import query

_MERCHANTS = query("router/merchants")
_SET_MERCHANT = query("router/set_merchant")
_ADOPT_MERCHANT = query("router/adopt_merchant")
_LINE_OF_CALL = query("router/line_of_call")
_REMOVE_MERCHANT = query("router/remove_merchant")


@dataclass(frozen=True, slots=True)
class Line:
    carrier: str
    account: str


async def merchants(conn: Connection) -> dict[str, str]:
    """Merchant -> its config as JSON."""
    return {row["merchant_id"]: row["config"] for row in await conn.fetch(_MERCHANTS)}


async def set_merchant(conn: Connection, merchant_id: str, config: str) -> None:
    await conn.execute(_SET_MERCHANT, merchant_id, config)


async def adopt_merchant(conn: Connection, merchant_id: str, config: str, before: str) -> None:
    """Only if it is still as it was `before`; '' stands for none."""
    await conn.execute(_ADOPT_MERCHANT, merchant_id, config, before)


async def remove_merchant(conn: Connection, merchant_id: str) -> bool:
    """False: it had none."""
    return bool(await conn.execute(_REMOVE_MERCHANT, merchant_id) != "DELETE 0")


async def line_of_call(conn: Connection, carriers: Sequence[str], call_sid: str) -> Line | None:
    """Which carrier's and account's call this is, if it is one of ours."""
    return pick_or_none(Line, await conn.fetchrow(_LINE_OF_CALL, list(carriers), call_sid))
