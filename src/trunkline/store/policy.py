"""Layers of calling policies, as documents. `leads.calling_policy` interprets them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from trunkline.schema.policy import PolicyLayer, PolicyScope
from trunkline.store.database import Connection
from trunkline.store.rows import columns, pick
from trunkline.store.sql import Area
from trunkline.store.tenants import Tenant

_SQL = Area("policy")


class PolicyKey(NamedTuple):
    scope: PolicyScope
    subject: str


@dataclass(frozen=True, slots=True)
class StoredPolicy(PolicyLayer):
    updated_by: str

    @property
    def key(self) -> PolicyKey:
        return PolicyKey(self.scope, self.subject)


async def read(conn: Connection, keys: Sequence[PolicyKey]) -> list[StoredPolicy]:
    rows = await conn.fetch(_SQL.read, *columns(keys, "scope", "subject"))
    return [pick(StoredPolicy, row) for row in rows]


async def lock(tx: Connection) -> None:
    """Lock all layers against other changes until the transaction ends."""
    await tx.execute(_SQL.lock)


async def put(
    tx: Connection, key: PolicyKey, document: dict[str, Any], *, owner: Tenant, actor: str
) -> StoredPolicy:
    row = await tx.fetchrow(_SQL.put, *key, document, owner.reseller_id, owner.merchant_id, actor)
    assert row is not None
    return pick(StoredPolicy, row)


async def remove(tx: Connection, key: PolicyKey) -> bool:
    return await tx.fetchval(_SQL.remove, *key) is not None


async def packs_named(conn: Connection) -> list[str]:
    return [row["pack"] for row in await conn.fetch(_SQL.packs_named)]


async def wake(conn: Connection, tenant: Tenant, *, limit: int) -> int:
    """Make leads due that wait for a window, because the windows have changed; returns how many, `limit` at most."""
    return int(await conn.fetchval(_SQL.wake, tenant.reseller_id, tenant.merchant_id, limit))
