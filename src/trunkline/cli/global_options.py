"""Accepts `--json`, `--url` and `--key` anywhere on the command line: before the first word, behind it, or at the end.

Every command about a running platform belongs to a group with these options (`control.connect`). Its commands have them
too, and so does `trunkline` itself; the last one on the line counts, and the line overrides the environment.
"""

import dataclasses
from collections.abc import Callable
from copy import copy
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

_META = "trunkline.cli.global_options"
_NAMES = ("as_json", "url", "key")
# From context, option and value to the effective value. The context is not of typer's public type.
Choose = Callable[[Any, Any, Any], Any]

_model = typer.Typer(add_completion=False)


@_model.command()
def _options(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    url: Annotated[str, typer.Option("--url", help="The URL of the API.", show_default=False)] = "",
    key: Annotated[str, typer.Option("--key", help="The API key.", show_default=False)] = "",
) -> None:
    """Never called: only its options are used."""


_MODELS: dict[str, TyperOption] = {
    str(param.name): param
    for param in typer.main.get_command(_model).params
    if isinstance(param, TyperOption) and param.name in _NAMES
}


class OptionsAnywhere(TyperGroup):
    """The root of all commands."""

    def __init__(self, **given: Any):
        super().__init__(**given)
        self.params += [_option(name, _remember_option) for name in _NAMES]
        for command in self.commands.values():
            _extend(command, is_remote=False)


def _extend(command: Any, *, is_remote: bool) -> None:
    """Add the options that a command about a running platform lacks, and let those that it has use values given before
    it."""
    if not isinstance(command, TyperCommand | TyperGroup):
        return
    own = {param.name: param for param in command.params}
    for name in _NAMES:
        if name in own:
            own[name].callback = _choose
        elif is_remote:
            command.params.append(_option(name, _change))
    if isinstance(command, TyperGroup):
        for each in command.commands.values():
            _extend(each, is_remote=is_remote or own.keys() >= set(_NAMES))


def _option(name: str, choose: Choose) -> TyperOption:
    option = copy(_MODELS[name])
    option.expose_value, option.callback = False, choose
    return option


def _remember_option(ctx: Any, option: Any, value: Any) -> Any:
    """Given before the first word: store it for the command that follows."""
    if _is_said(ctx, option):
        ctx.meta.setdefault(_META, {})[option.name] = value
    return value


def _choose(ctx: Any, option: Any, value: Any) -> Any:
    """For a command with the option: the value given with it, before it, or in the environment."""
    return value if _is_said(ctx, option) else ctx.meta.get(_META, {}).get(option.name, value)


def _change(ctx: Any, option: Any, value: Any) -> Any:
    """Given behind the group, which has connected with the options before: change the connection."""
    if _is_said(ctx, option):
        ctx.obj = dataclasses.replace(ctx.obj, **{str(option.name): value})
    return value


def _is_said(ctx: Any, option: Any) -> bool:
    source = ctx.get_parameter_source(str(option.name))
    return source is not None and source.name == "COMMANDLINE"
