"""Shared parts of the commands that create, change and remove resources: numbers, pools, merchants.

POOLS = Resource("pools", ("id", "name"))
POOLS.add_show(app, "One pool.")
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote

import typer

from trunkline.cli.control import ROOT, Context, Remote

# As the value of an option, this word clears it.
NONE = "none"

Key = Annotated[str, typer.Argument(metavar="ID", help="Its id.")]


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource by its name in the API, with the columns of its output."""

    what: str
    columns: tuple[str, ...]

    def add_show(self, app: typer.Typer, explanation: str) -> None:
        @app.command("show", help=explanation)
        def show(ctx: Context, key: Key) -> None:
            remote: Remote = ctx.obj
            remote.show(remote.ask(lambda api: api.get(self._path(key))), self.columns)

    def add_remove(self, app: typer.Typer, explanation: str) -> None:
        @app.command("remove", help=explanation)
        def remove(ctx: Context, key: Key) -> None:
            self.remove(ctx, key, {})

    def list(self, ctx: Context, **query: Any) -> None:
        remote: Remote = ctx.obj
        remote.show(
            remote.ask(lambda api: api.get(f"{ROOT}/{self.what}", without_empty(**query))), self.columns
        )

    def create(self, ctx: Context, **values: Any) -> None:
        remote: Remote = ctx.obj
        remote.show(
            remote.ask(lambda api: api.post(f"{ROOT}/{self.what}", without_empty(**values))), self.columns
        )

    def change(self, ctx: Context, key: str, body: Mapping[str, Any]) -> None:
        remote: Remote = ctx.obj
        remote.show(remote.ask(lambda api: api.patch(self._path(key), dict(body))), self.columns)

    def remove(self, ctx: Context, key: str, query: dict[str, str | int]) -> None:
        """Shows the object if it could not be removed yet."""
        remote: Remote = ctx.obj
        left = remote.ask(lambda api: api.delete(self._path(key), query))
        remote.show(left or {"items": []}, self.columns)

    def _path(self, key: str) -> str:
        return f"{ROOT}/{self.what}/{quote(key, safe='')}"


def without_empty(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, "")}


def changed_options(**options: tuple[str, Any]) -> dict[str, Any]:
    """The options that were given, by their fields, with `none` as null."""
    return {name: None if text == NONE else value for name, (text, value) in options.items() if text}


def number(text: str, kind: type[int] | type[float] = float) -> float | None:
    if text in ("", NONE):
        return None
    try:
        return kind(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number.") from None
