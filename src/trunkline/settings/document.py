"""Generates the tables of `docs/reference/settings.md` and `docs/reference/tuning.md` from the model:
`python -m trunkline.settings.document docs/reference/settings.md docs/reference/tuning.md`.

Marks in a page select the rank: `<!-- settings: operator -->` to `<!-- /settings -->`.
"""

import re
import sys
from itertools import groupby
from pathlib import Path

from trunkline.settings.model import Settings
from trunkline.settings.variables import Variable, variables_of

_SECTION = re.compile(r"(<!-- settings: (\w+) -->\n).*?(<!-- /settings -->)", re.DOTALL)
_HEAD = "| Variable | Default | Meaning | Allowed |\n|---|---|---|---|\n"

_TITLES = {
    None: "The process",
    "database": "Postgres",
    "redis": "Valkey or Redis",
    "http": "HTTP",
    "log": "Logs",
    "leader": "Leadership",
    "dispatch": "Dispatch",
    "carrier": "Calls",
    "router": "Router",
    "jobs": "Jobs",
    "mailboxes": "Mailboxes",
    "reminders": "Reminders",
    "control": "Controls, flags and alarms",
    "spans": "Spans",
}


def tables(rank: str) -> str:
    """The settings of a rank: name, default, meaning, what is allowed. Those of tuning have one table per group."""
    members = [variable for variable in variables_of(Settings).values() if variable.rank == rank]
    if rank != "tuning":
        return _table(members)
    groups = groupby(members, key=lambda variable: variable.group)
    return "\n".join(f"## {_TITLES[group]}\n\n{_table(list(those))}" for group, those in groups)


def _table(members: list[Variable]) -> str:
    return _HEAD + "".join(map(_row, members))


def _row(variable: Variable) -> str:
    default = f"`{variable.default}`" if variable.default else "unset"
    return f"| `{variable.name}` | {default} | {variable.meaning} | {variable.allowed} |\n"


def rewritten(page: str) -> str:
    """The page with its tables brought up to date."""
    return _SECTION.sub(lambda found: f"{found[1]}\n{tables(found[2])}\n{found[3]}", page)


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(rewritten(path.read_text()))
