"""From a row to a value: the columns that the value declares, and no others. And from values to arrays."""

from collections.abc import Collection
from operator import attrgetter
from typing import Any, TypeVar

import asyncpg

T = TypeVar("T")


def pick(kind: type[T], row: asyncpg.Record, **given: object) -> T:
    """`kind` is a dataclass or a struct: both name their fields for patterns, in order. A field that is no column as it
    stands is `given`."""
    names: tuple[str, ...] = kind.__match_args__  # type: ignore[attr-defined]  # no type says that a class has it
    values = {**row, **given} if given else row
    return kind(*map(values.__getitem__, names))


def columns(values: Collection[object], *names: str) -> list[list[Any]]:
    """A list of each field, for a statement that takes many values as one array per column."""
    return [list(map(attrgetter(name), values)) for name in names]


def affected(status: str) -> int:
    """How many rows a statement changed, from what Postgres answers: `DELETE 3`."""
    return int(status.rpartition(" ")[2])


def pick_or_none(kind: type[T], row: asyncpg.Record | None) -> T | None:
    return None if row is None else pick(kind, row)
