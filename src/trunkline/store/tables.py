"""Reads and writes the rows of a plain resource as its shape."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from types import NoneType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args, get_type_hints
from uuid import UUID

import asyncpg

from trunkline.store.database import Connection
from trunkline.store.rows import pick, pick_or_none

if TYPE_CHECKING:
    from trunkline.store.tenants import Tenant

T = TypeVar("T")
Key = str | UUID
# Where a list begins: texts and ids that ascend, and ids that descend.
FIRST_TEXT = ""
FIRST_ID = UUID(int=0)
LAST_ID = UUID(int=2**128 - 1)


class Table(Generic[T]):
    """The statements of one resource.

    A read gets the two ids of the tenant first, then the key; a list also its start, the limit and the filters. INSERT
    has places for {columns} and {values}, UPDATE one for {changes}: a new field is a column, and no new SQL. `columns`
    has the names of the columns that are not those of their fields.
    """

    def __init__(
        self,
        shape: type[T],
        *,
        get: str,
        select: str,
        insert: str = "",
        update: str = "",
        columns: Mapping[str, str] | None = None,
        key: str = "id",
        start: Key = FIRST_TEXT,
    ):
        self.shape = shape
        self.key = key
        self.start = start
        self._get = get
        self._select = select
        self._insert = insert
        self._update = update
        self._columns = dict(columns or {})

    async def get(self, tx: Connection, tenant: "Tenant", key: Key) -> T | None:
        return self.row(await tx.fetchrow(self._get, tenant.reseller_id, tenant.merchant_id, key))

    async def page(
        self, tx: Connection, tenant: "Tenant", *filters: object, start: Key, limit: int
    ) -> list[T]:
        rows = await tx.fetch(self._select, tenant.reseller_id, tenant.merchant_id, start, limit, *filters)
        return [pick(self.shape, row) for row in rows]

    async def insert(self, tx: Connection, new: Any, **added: object) -> T | None:
        """Write the fields of `new`, and those that the platform adds or decides. None if its key is taken."""
        values = {each.name: getattr(new, each.name) for each in fields(new)} | added
        columns = ", ".join(self._column(name) for name in values)
        places = ", ".join(f"${n}" for n in range(1, len(values) + 1))
        statement = self._insert.format(columns=columns, values=places)
        return self.row(await tx.fetchrow(statement, *values.values()))

    async def update(self, tx: Connection, key: Key, changes: Mapping[str, object]) -> T | None:
        """Write the fields that are given. None leaves a field as it is, unless the resource may have None there."""
        written = {
            name: value for name, value in changes.items() if value is not None or name in self._nullable
        }
        parts = "".join(f", {self._column(name)} = ${n}" for n, name in enumerate(written, 2))
        return self.row(await tx.fetchrow(self._update.format(changes=parts), key, *written.values()))

    def row(self, row: asyncpg.Record | None) -> T | None:
        return pick_or_none(self.shape, row)

    def _column(self, name: str) -> str:
        return self._columns.get(name, name)

    @cached_property
    def _nullable(self) -> set[str]:
        hints: dict[str, Any] = get_type_hints(self.shape)
        return {name for name, hint in hints.items() if NoneType in get_args(hint)}


@dataclass(frozen=True, slots=True)
class InUse:
    """Why something cannot be removed: rows of `table` refer to it."""

    table: str


async def delete(tx: Connection, statement: str, key: Key) -> InUse | None:
    """Delete by a statement whose foreign keys decide. After `InUse` only a rollback is possible."""
    try:
        await tx.execute(statement, key)
    except asyncpg.ForeignKeyViolationError as error:
        return InUse(error.table_name or "other objects")
    return None
