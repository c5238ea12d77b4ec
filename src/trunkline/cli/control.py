"""`trunkline control`: stop and resume, flags, alarms and the audit log, over the API of a running platform.

trunkline control stop kill-switch --reason "wrong prompt"
trunkline control stop merchant acme-store --for 2h --reason "complaints"
trunkline control resume merchant acme-store --ramp 5m --reason "solved"
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.table import Table

from trunkline.cli.console import out
from trunkline.client.errors import ApiError, Unreachable
from trunkline.client.transport import Transport
from trunkline.errors import TrunklineError
from trunkline.settings.values import parse_duration_s

app = typer.Typer(help="Controls, flags and alarms of a running platform.", no_args_is_help=True)

ROOT = "/api/v1"
TIMEOUT_S = 10.0
ADMIN_KEY_FILE = Path(".trunkline/admin.key")
LOCAL_URL = "http://127.0.0.1:8080"

# A body or a query.
Values = dict[str, Any]


class ControlCommandError(TrunklineError):
    """The platform refused, or could not be reached."""


class What(StrEnum):
    KILL_SWITCH = "kill-switch"
    PROMOTER = "promoter"
    RESELLER = "reseller"
    MERCHANT = "merchant"
    CAMPAIGN = "campaign"
    NUMBER = "number"
    CARRIER = "carrier"


@dataclass(frozen=True, slots=True)
class Remote:
    """The connection to a platform, and the format of the output."""

    url: str
    key: str
    as_json: bool

    def ask(self, question: Callable[[Transport], Awaitable[Any]]) -> Any:
        async def answer() -> Any:
            transport = Transport(self.url, self.key, TIMEOUT_S)
            try:
                return await question(transport)
            finally:
                await transport.close()

        try:
            return asyncio.run(answer())
        except (ApiError, Unreachable, ValueError) as error:
            raise ControlCommandError(str(error)) from error

    def get(self, columns: Sequence[str], *path: str, query: Values | None = None) -> None:
        self.show(self.ask(lambda api: api.get(api_path(*path), query)), columns)

    def post(self, columns: Sequence[str], *path: str, body: Values | None = None) -> None:
        self.show(self.ask(lambda api: api.post(api_path(*path), body or {})), columns)

    def put(self, columns: Sequence[str], *path: str, body: Values) -> None:
        self.show(self.ask(lambda api: api.put(api_path(*path), body)), columns)

    def patch(self, columns: Sequence[str], *path: str, body: Values) -> None:
        self.show(self.ask(lambda api: api.patch(api_path(*path), body)), columns)

    def delete(self, columns: Sequence[str], *path: str, query: Values | None = None) -> None:
        self.show(self.ask(lambda api: api.delete(api_path(*path), query)), columns)

    def show(
        self, answer: Any, columns: Sequence[str] = (), rows: Sequence[dict[str, Any]] | None = None
    ) -> None:
        """The answer as JSON; or for people its rows, which are its items, or the answer itself."""
        if self.as_json:
            print(json.dumps(answer, indent=2))
            return
        rows = answer.get("items", [answer]) if rows is None else rows
        table = Table(*columns)
        for row in rows:
            table.add_row(*(_text(row.get(column)) for column in columns))
        out.print(table if rows else "None.")


class RemoteContext(typer.Context):
    """Of a command about a running platform: `connect` has put the connection into it."""

    obj: Remote


def api_path(*parts: str) -> str:
    return "/".join((ROOT, *(quote(part, safe="") for part in parts)))


def remote_group(explanation: str) -> typer.Typer:
    """The commands about one thing of a running platform."""
    group = typer.Typer(help=explanation, no_args_is_help=True)
    group.callback()(connect)
    return group


def given(**values: Any) -> Values:
    """Without the options that were left out."""
    return {name: value for name, value in values.items() if value not in (None, "", [], ())}


def options(ctx: RemoteContext) -> Values:
    """The arguments and options of a command that were given. Their parameters are called like the API's fields."""
    return given(**ctx.params)


Url = Annotated[str, typer.Option(envvar=["TRUNKLINE_API_URL", "TRUNKLINE_URL"], help="The URL of the API.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Reason = Annotated[str, typer.Option(help="The reason, for the audit log.")]
Subject = Annotated[
    str, typer.Argument(help="The id, or the carrier's name. None for kill-switch and promoter.")
]
Ramp = Annotated[str, typer.Option(help="How long the pace ramps up, for example 5m.")]
Limit = Annotated[int, typer.Option(min=1, max=200, help="The maximum number of entries.")]
TakeOverdue = Annotated[
    int | None,
    typer.Option(min=0, help="Call also the leads that were due before, at most this many. Left out: none."),
]

_STATE = ("scope", "subject", "state", "share")
_STOP = ("scope", "subject", "state", "set_by", "reason", "changed_by", "expires_at", "ramp_until")
_FLAG = (
    "name", "decided_by", "enabled", "percentage", "resellers", "merchants", "reason", "changed_by", "version",
)  # fmt: skip
_PREVIEW = ("turned_on", "turned_off", "overdue", "merchants", "version")
_ALARM = ("id", "severity", "name", "subject", "raised_at", "cleared_at", "detail", "action")
_STATES = {"on": True, "off": False, "any": None}
_NO_FLAG: dict[str, Any] = {
    "enabled": False,
    "percentage": 100,
    "resellers": {},
    "merchants": {},
    "version": 0,
}
# Flags that are on when unset: unsetting them turns them on where they were off.
_ON_BY_DEFAULT = ("event_dispatch",)
_LINE = ("at", "actor", "action", "subject", "reason")


@app.callback()
def connect(
    ctx: RemoteContext,
    url: Url = LOCAL_URL,
    key: Annotated[
        str, typer.Option(envvar="TRUNKLINE_API_KEY", help=f"The API key. Unset: that of {ADMIN_KEY_FILE}.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    if not key and ADMIN_KEY_FILE.is_file():
        key = ADMIN_KEY_FILE.read_text(encoding="utf-8").strip()
    ctx.obj = Remote(url, key, as_json)


@app.command()
def show(ctx: RemoteContext) -> None:
    """All stops, including those that are ramping up."""
    ctx.obj.get(_STOP, "controls", query={"limit": 200})


@app.command()
def stop(
    ctx: RemoteContext,
    what: What,
    reason: Reason,
    subject: Subject = "",
    lasting: Annotated[
        str, typer.Option("--for", help="How long, for example 2h. Left out: until resumed.")
    ] = "",
    ramp: Ramp = "30s",
) -> None:
    """Stop calls of one subject, or all calls."""
    body: Values = {"reason": reason, "ramp_s": _seconds(ramp)}
    if lasting:
        body["duration_s"] = _seconds(lasting)
    ctx.obj.put(_STATE, *_subject(what, subject), body=body)


@app.command()
def resume(ctx: RemoteContext, what: What, reason: Reason, subject: Subject = "", ramp: Ramp = "30s") -> None:
    """Lift a stop; the pace ramps up."""
    ctx.obj.delete(_STATE, *_subject(what, subject), query={"reason": reason, "ramp_s": _seconds(ramp)})


@app.command()
def flags(ctx: RemoteContext) -> None:
    """Every feature flag. Values of a flag that a flag service decides have no effect."""
    ctx.obj.get(_FLAG, "flags", query={"limit": 200})


@app.command()
def flag(
    ctx: RemoteContext,
    name: str,
    reason: Reason,
    enabled: Annotated[bool | None, typer.Option("--on/--off", help="Off means off for everybody.")] = None,
    percentage: Annotated[
        int | None, typer.Option(min=0, max=100, help="Percentage of tenants that are not named.")
    ] = None,
    reseller: Annotated[
        list[str] | None, typer.Option(help="acme=on, acme=off, or acme=any to remove the name; repeatable.")
    ] = None,
    merchant: Annotated[list[str] | None, typer.Option(help="The same for merchants.")] = None,
    preview: Annotated[bool, typer.Option("--preview", help="Show the effects, and change nothing.")] = False,
    take_overdue: TakeOverdue = None,
) -> None:
    """Change a feature flag. What is left out stays as it is. Leads that were due before a merchant is turned on are
    not called: the preview counts them, and --take-overdue takes them."""
    remote = ctx.obj
    resellers, merchants = _named(reseller or []), _named(merchant or [])
    now = remote.ask(lambda api: _flag(api, name))
    rule = {
        "enabled": now["enabled"] if enabled is None else enabled,
        "percentage": now["percentage"] if percentage is None else percentage,
        "resellers": _renamed(now["resellers"], resellers),
        "merchants": _renamed(now["merchants"], merchants),
    }
    foreseen = remote.ask(lambda api: api.post(api_path("flags", name, "preview"), rule))
    if preview:
        remote.show(foreseen, _PREVIEW)
        return
    _warn_of_overdue(foreseen["overdue"], take_overdue)
    body = rule | {"reason": reason, "version": now["version"], "take_overdue": take_overdue}
    remote.put(_FLAG, "flags", name, body=body)


@app.command()
def unset_flag(ctx: RemoteContext, name: str, reason: Reason, take_overdue: TakeOverdue = None) -> None:
    """Reset a feature flag to the default of the code."""
    remote = ctx.obj
    now = remote.ask(lambda api: _flag(api, name))
    if name in _ON_BY_DEFAULT:
        foreseen = remote.ask(lambda api: api.post(api_path("flags", name, "preview"), {"enabled": True}))
        _warn_of_overdue(foreseen["overdue"], take_overdue)
    query = {"reason": reason, "version": now["version"]}
    query |= {} if take_overdue is None else {"take_overdue": take_overdue}
    remote.delete(_FLAG, "flags", name, query=query)


def _warn_of_overdue(overdue: int, take_overdue: int | None) -> None:
    if overdue and take_overdue is None:
        print(
            f"{overdue} leads were due before and are not called: another system has called them. They end as ABORTED.",
            file=sys.stderr,
        )


async def _flag(api: Transport, name: str) -> dict[str, Any]:
    listed = (await api.get(f"{ROOT}/flags", {"limit": 200}))["items"]
    return next((each for each in listed if each["name"] == name), _NO_FLAG)


@app.command()
def alarms(
    ctx: RemoteContext,
    history: Annotated[bool, typer.Option("--all", help="Include cleared alarms.")] = False,
    limit: Limit = 50,
) -> None:
    """Open alarms."""
    ctx.obj.get(_ALARM, "alarms", query={"state": "all" if history else "open", "limit": limit})


@app.command()
def clear_alarm(
    ctx: RemoteContext, alarm_id: Annotated[str, typer.Argument(help="The id of an alarm.")], reason: Reason
) -> None:
    """Clear an alarm by hand. A measured alarm is raised again if its cause persists."""
    ctx.obj.post(_ALARM, "alarms", alarm_id, "clear", body={"reason": reason})


@app.command()
def free_channels(ctx: RemoteContext, reason: Reason) -> None:
    """Free all channels that Valkey holds for calls that Postgres does not have."""
    ctx.obj.post(("freed",), "channels", "free", body={"reason": reason})


@app.command()
def audit(
    ctx: RemoteContext,
    action: Annotated[str, typer.Option(help="A whole action, or its first word: control.")] = "",
    actor: Annotated[str, typer.Option(help="Who did it.")] = "",
    subject: Annotated[str, typer.Option(help="To what.")] = "",
    since: Annotated[datetime | None, typer.Option(help="From then on, in UTC.")] = None,
    until: Annotated[datetime | None, typer.Option(help="Before then, in UTC.")] = None,
    limit: Limit = 50,
) -> None:
    """Who changed what, newest first."""
    span = {name: f"{at.isoformat()}Z" for name, at in (("since", since), ("until", until)) if at}
    ctx.obj.get(_LINE, "audit", query=options(ctx) | span)


def _subject(what: What, subject: str) -> tuple[str, ...]:
    if (what in (What.KILL_SWITCH, What.PROMOTER)) == bool(subject):
        raise typer.BadParameter("Name what to stop; kill-switch and promoter have no subject.")
    return ("controls", what, subject) if subject else ("controls", what)


def _seconds(text: str) -> int:
    try:
        return round(float(str(parse_duration_s(text))))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no duration: write 90s, 5m or 2h.") from None


def _named(pairs: Sequence[str]) -> dict[str, bool | None]:
    """None: remove the name, so that the percentage decides."""
    named = {}
    for pair in pairs:
        name, _, state = pair.partition("=")
        if state not in _STATES:
            raise typer.BadParameter(f"{pair!r}: write id=on, id=off or id=any.")
        named[name] = _STATES[state]
    return named


def _renamed(now: Mapping[str, bool], changes: Mapping[str, bool | None]) -> dict[str, bool]:
    return {name: state for name, state in {**now, **changes}.items() if state is not None}


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={_text(each)}" for key, each in value.items())
    if isinstance(value, bool):
        return "on" if value else "off"
    return "" if value is None else str(value)


def payload_of(text: str) -> Any:
    """None: the option was left out."""
    try:
        return json.loads(text) if text else None
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not JSON.") from None


def json_of(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no JSON.") from None
