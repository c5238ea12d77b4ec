"""Generates the tables of a page from the commands: `python -m trunkline.cli.document docs/reference/cli.md`."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import typer
from typer.core import TyperCommand, TyperGroup

from trunkline.cli.main import app

_SECTION = re.compile(r"(?<=<!-- commands -->\n).*(?=<!-- /commands -->)", re.DOTALL)


def commands() -> Iterator[tuple[str, str]]:
    """Every command with the first line of its help, in the order in which `--help` shows them."""
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup), "there are several"
    yield from _walk(root, "trunkline")


def table() -> str:
    return "| Command | |\n|---|---|\n" + "".join(f"| `{name}` | {what} |\n" for name, what in commands())


def rewritten(page: str) -> str:
    """The page with its table brought up to date."""
    return _SECTION.sub(lambda _: f"\n{table()}\n", page)


def _walk(group: TyperGroup, path: str) -> Iterator[tuple[str, str]]:
    for name, command in sorted(group.commands.items()):
        here = f"{path} {name}"
        if isinstance(command, TyperGroup) and command.commands:
            yield from _walk(command, here)
        elif isinstance(command, TyperCommand | TyperGroup):
            yield here, (command.help or "").strip().split("\n")[0]


if __name__ == "__main__":
    place = Path(sys.argv[1])
    place.write_text(rewritten(place.read_text(encoding="utf-8")), encoding="utf-8")
