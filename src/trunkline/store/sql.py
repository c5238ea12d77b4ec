"""Loads the SQL. A query is a block of its area's file: `-- name: insert` in `queries/leads.sql`."""

import re
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING

_ROOT = files("trunkline.store")
_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


class Area:
    """The queries of one file, each an attribute of its name: `Area("leads").insert`."""

    def __init__(self, name: str):
        self.__dict__.update(blocks(name))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> str: ...


def query(name: str, **parts: str) -> str:
    """One of them by its path, `leads/list_by`. Statements that differ in a clause share a block, with a {place} for
    the clause."""
    area, _, block = name.partition("/")
    text = blocks(area)[block]
    return text.format(**parts) if parts else text


@cache
def blocks(area: str) -> dict[str, str]:
    """The statements of an area by name, each with its comment."""
    _, *parts = _NAME.split((_ROOT / "queries" / f"{area}.sql").read_text(encoding="utf-8"))
    by_name = {name: text.strip("\n") + "\n" for name, text in zip(parts[::2], parts[1::2], strict=True)}
    if len(by_name) < len(parts) // 2:
        raise ValueError(f"queries/{area}.sql names a block twice")
    return by_name


def migrations() -> list[Traversable]:
    folder = _ROOT / "migrations"
    return sorted((entry for entry in folder.iterdir() if entry.name.endswith(".sql")), key=lambda e: e.name)
