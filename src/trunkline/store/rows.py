"""From a row to a value: the columns that the value declares, and no others."""

from typing import TYPE_CHECKING, TypeVar

import asyncpg

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


def pick(kind: type[T], row: asyncpg.Record) -> T:
    return kind(**{name: row[name] for name in kind.__dataclass_fields__})


def pick_or_none(kind: type[T], row: asyncpg.Record | None) -> T | None:
    return None if row is None else pick(kind, row)
