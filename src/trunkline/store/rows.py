"""From a row to a value: the columns that the value declares, and no others."""

from typing import TypeVar

import asyncpg

T = TypeVar("T")


def pick(kind: type[T], row: asyncpg.Record) -> T:
    """`kind` is a dataclass or a struct: both name their fields for patterns, in order."""
    names: tuple[str, ...] = kind.__match_args__  # type: ignore[attr-defined]  # no type says that a class has it
    return kind(*[row[name] for name in names])


def pick_or_none(kind: type[T], row: asyncpg.Record | None) -> T | None:
    return None if row is None else pick(kind, row)
