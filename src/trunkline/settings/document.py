"""The tables of `docs/settings.md`, made from the model: `python -m trunkline.settings.document docs/settings.md`."""

import re
import sys
from itertools import groupby
from pathlib import Path

from trunkline.settings.model import Settings
from trunkline.settings.variables import Variable, variables_of

_SECTION = re.compile(r"(?<=<!-- settings -->\n).*(?=<!-- /settings -->)", re.DOTALL)

_TITLES = {
    None: "The process",
    "database": "Postgres",
    "redis": "Valkey or Redis",
    "http": "HTTP",
    "log": "Logs",
    "leader": "Leadership",
    "dispatch": "Dispatch",
    "carrier": "Calls",
    "twilio": "Twilio",
    "plivo": "Plivo",
    "exotel": "Exotel",
    "vapi": "Vapi",
    "router": "Router",
    "jobs": "Jobs",
    "mailboxes": "Mailboxes",
    "reminders": "Reminders",
    "control": "Controls, flags and alarms",
    "spans": "Spans",
}


def tables() -> str:
    """One table per group: name, default, meaning, what is allowed."""
    groups = groupby(variables_of(Settings).values(), key=lambda variable: variable.group)
    return "\n".join(_table(_TITLES[group], list(members)) for group, members in groups)


def _table(title: str, members: list[Variable]) -> str:
    head = f"## {title}\n\n| Variable | Default | Meaning | Allowed |\n|---|---|---|---|\n"
    return head + "".join(map(_row, members))


def _row(variable: Variable) -> str:
    default = f"`{variable.default}`" if variable.default else "unset"
    return f"| `{variable.name}` | {default} | {variable.meaning} | {variable.allowed} |\n"


def rewritten(page: str) -> str:
    """The page with its tables brought up to date."""
    return _SECTION.sub(lambda _: f"\n{tables()}\n", page)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(rewritten(path.read_text()))
