"""Loads the SQL files. A query is named by its path: `leads/insert` is `queries/leads/insert.sql`."""

from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

_ROOT = files("trunkline.store")


@cache
def query(name: str) -> str:
    return (_ROOT / "queries" / f"{name}.sql").read_text(encoding="utf-8")


def migrations() -> list[Traversable]:
    folder = _ROOT / "migrations"
    return sorted((entry for entry in folder.iterdir() if entry.name.endswith(".sql")), key=lambda e: e.name)
