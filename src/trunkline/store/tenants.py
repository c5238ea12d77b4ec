"""Resellers and their merchants, and what each tenant may see."""

from typing import Protocol

from trunkline.schema.tenants import Merchant, Reseller
from trunkline.store.database import Connection
from trunkline.store.sql import Area, query
from trunkline.store.tables import InUse, Table, delete
from trunkline.value import Value

_SQL = Area("tenants")
_KEYS_SQL = Area("keys")


class Tenant(Value, frozen=True):
    """Whose rows a query may see: all (the platform), a reseller's, or one merchant's."""

    reseller_id: str | None = None
    merchant_id: str | None = None

    @property
    def is_platform(self) -> bool:
        return self.reseller_id is None

    def owns(self, other: "Tenant") -> bool:
        """Whether `other` is this tenant or below it."""
        return self.reseller_id in (None, other.reseller_id) and self.merchant_id in (None, other.merchant_id)


PLATFORM = Tenant()


class Owned(Protocol):
    @property
    def reseller_id(self) -> str | None: ...

    @property
    def merchant_id(self) -> str | None: ...


def tenant_of(value: Owned | Reseller | Merchant) -> Tenant:
    """The tenant that a resource belongs to, or that it is."""
    match value:
        case Reseller():
            return Tenant(value.id)
        case Merchant():
            return Tenant(value.reseller_id, value.id)
        case _:
            return Tenant(value.reseller_id, value.merchant_id)


RESELLERS = Table(
    Reseller,
    get=_SQL.get_reseller,
    select=_SQL.list_resellers,
    insert=query("tenants/insert_reseller"),
    update=query("tenants/update_reseller"),
)
MERCHANTS = Table(
    Merchant,
    get=_SQL.get_merchant,
    select=_SQL.list_merchants,
    insert=query("tenants/insert_merchant"),
    update=query("tenants/update_merchant"),
    columns={"default_pool": "default_pool_id"},
)


async def delete_reseller(tx: Connection, reseller_id: str) -> InUse | None:
    await tx.execute(_KEYS_SQL.forget_dead, reseller_id, None)
    return await delete(tx, _SQL.delete_reseller, reseller_id)


async def delete_merchant(tx: Connection, merchant_id: str) -> InUse | None:
    await tx.execute(_KEYS_SQL.forget_dead, None, merchant_id)
    return await delete(tx, _SQL.delete_merchant, merchant_id)
