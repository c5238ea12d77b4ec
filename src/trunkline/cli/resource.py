"""The commands of a plain resource. Their options are the fields of its shapes.

POOLS = Resource("pools", Pool, {"overflow_after_s": ("after", "After how many seconds.")})
POOLS.add_show(app, "One pool.")
POOLS.add_create(app, NewPool, "Create a pool.")
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from types import NoneType
from typing import Annotated, Any, get_args, get_type_hints

import typer

from trunkline.cli.control import Limit, RemoteContext, Values, api_path, given

# As the value of an option, this word clears it.
NONE = "none"
Key = Annotated[str, typer.Argument(metavar="ID", help="Its id.")]


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource by its name in the API, with its shape.

    `options` has the name and the help of the options that are not called like their field; `hidden` the fields that
    the table of the output leaves out.
    """

    what: str
    shape: type[Any]
    options: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    hidden: Collection[str] = ("created_at",)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(each.name for each in fields(self.shape) if each.name not in self.hidden)

    def add_list(self, app: typer.Typer, explanation: str) -> None:
        @app.command("list", help=explanation)
        def select(ctx: RemoteContext, limit: Limit = 50) -> None:
            self.list(ctx, limit=limit)

    def add_show(self, app: typer.Typer, explanation: str) -> None:
        @app.command("show", help=explanation)
        def show(ctx: RemoteContext, object_id: Key) -> None:
            ctx.obj.get(self.columns, self.what, object_id)

    def add_create(self, app: typer.Typer, new: type[Any], explanation: str) -> None:
        """The first field is the argument. A name that is left out is the id."""
        first, *others = fields(new)

        def create(ctx: RemoteContext, **options: Any) -> None:
            values = self._values(new, options)
            if "name" in options:
                values.setdefault("name", values[first.name])
            body = {name: value for name, value in values.items() if value is not None}
            ctx.obj.post(self.columns, self.what, body=body)

        argument = Annotated[str, typer.Argument(help=first.metadata["description"])]
        parameters = [_parameter(first.name, argument), *(self._option(new, each) for each in others)]
        _add_command(app, "create", explanation, create, parameters)

    def add_change(
        self,
        app: typer.Typer,
        change: type[Any],
        explanation: str,
        prepare: Callable[[Values], Values] = dict,
    ) -> None:
        """`prepare` may add to the fields that were given."""

        def update(ctx: RemoteContext, object_id: str, **options: Any) -> None:
            body = prepare(self._values(change, options))
            ctx.obj.patch(self.columns, self.what, object_id, body=body)

        parameters = [_parameter("object_id", Key), *(self._option(change, each) for each in fields(change))]
        _add_command(app, "change", explanation, update, parameters)

    def add_remove(self, app: typer.Typer, explanation: str) -> None:
        @app.command("remove", help=explanation)
        def remove(ctx: RemoteContext, object_id: Key) -> None:
            self.remove(ctx, object_id, {})

    def list(self, ctx: RemoteContext, **query: Any) -> None:
        ctx.obj.get(self.columns, self.what, query=given(**query))

    def remove(self, ctx: RemoteContext, key: str, query: dict[str, str | int]) -> None:
        """Shows the object if it could not be removed yet."""
        left = ctx.obj.ask(lambda api: api.delete(api_path(self.what, key), query))
        ctx.obj.show(left or {"items": []}, self.columns)

    def _option(self, body: type[Any], each: Field[Any]) -> inspect.Parameter:
        """A number that can be cleared is a text, because of `none`."""
        name, explanation = self.options.get(
            each.name, (each.name.removesuffix("_id").replace("_", "-"), each.metadata["description"])
        )
        kind, is_required = _kind(body, each.name), each.default is MISSING and each.name != "name"
        if kind is bool:
            switch = typer.Option(f"--{name}/--no-{name}", help=explanation)
            return _parameter(each.name, Annotated[bool | None, switch], None)
        if kind is str or self._is_clearable(each.name):
            text = Annotated[str, typer.Option(f"--{name}", help=explanation)]
            return _parameter(each.name, text, inspect.Parameter.empty if is_required else "")
        least, most = each.metadata.get("ge"), each.metadata.get("le")
        number = typer.Option(f"--{name}", help=explanation, min=least, max=most)
        if is_required:
            return _parameter(each.name, Annotated[kind, number])
        return _parameter(each.name, Annotated[kind | None, number], None)

    def _values(self, body: type[Any], options: Mapping[str, Any]) -> Values:
        """The fields whose options were given, with `none` as None."""
        return {
            name: None if value == NONE else _number(value, _kind(body, name))
            for name, value in given(**options).items()
        }

    def _is_clearable(self, name: str) -> bool:
        return NoneType in get_args(get_type_hints(self.shape)[name])


def _kind(body: type[Any], name: str) -> Any:
    """The type of a field on the command line: bool, int, float, or str for everything else."""
    hint = get_type_hints(body)[name]
    kinds = {hint, *get_args(hint)} & {bool, int, float}
    return kinds.pop() if kinds else str


def _number(value: Any, kind: Any) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise typer.BadParameter(f"{value!r} is not a number.") from None


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _add_command(
    app: typer.Typer,
    name: str,
    explanation: str,
    command: Callable[..., None],
    parameters: list[inspect.Parameter],
) -> None:
    """Typer reads the options of a command from its signature."""
    signature = inspect.Signature([_parameter("ctx", RemoteContext), *parameters])
    command.__signature__ = signature  # type: ignore[attr-defined]  # not a function's by its type
    app.command(name, help=explanation)(command)
