"""`trunkline top`: the present state in a terminal, until Ctrl-C.

trunkline top
trunkline top --once --json
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from trunkline.cli.console import out
from trunkline.cli.control import (
    LOCAL_URL,
    ControlCommandError,
    Remote,
    RemoteContext,
    Url,
    api_path,
    connect,
)
from trunkline.client.errors import Unreachable
from trunkline.client.transport import Transport

app = typer.Typer(help="Live overview in a terminal.", invoke_without_command=True)

BARS = " ▁▂▃▄▅▆▇█"
QUEUES_SHOWN = 10


@app.callback()
def top(
    ctx: RemoteContext,
    url: Url = LOCAL_URL,
    key: Annotated[
        str,
        typer.Option(envvar="TRUNKLINE_API_KEY", help="The API key. Unset: that of .trunkline/admin.key."),
    ] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON for programs, one object per line.")
    ] = False,
    every_s: Annotated[
        float, typer.Option("--every", min=0.2, max=3600, help="Seconds between refreshes.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print once, and exit.")] = False,
) -> None:
    """Calls, pace, lateness, channels, queues, alarms and processes, refreshed until Ctrl-C."""
    connect(ctx, url, key, as_json)
    if once:
        seen = ctx.obj.ask(fetch)
        print(json.dumps(seen)) if as_json else out.print(view(seen))
        return
    asyncio.run(_watch(ctx.obj, every_s))


async def fetch(api: Transport) -> dict[str, Any]:
    overview = await api.get(api_path("overview"))
    alarms = await api.get(api_path("alarms"), {"limit": 10})
    stops = await api.get(api_path("controls"), {"limit": 10})
    return {"overview": overview, "alarms": alarms["items"], "stops": stops["items"]}


def view(seen: Mapping[str, Any]) -> RenderableType:
    overview = seen["overview"]
    endings = ", ".join(f"{n} {name}" for name, n in sorted(overview["endings"].items(), key=lambda e: -e[1]))
    pace = Text(f"\n{sparkline([each['dials'] for each in overview['slices']])}\n", style="green")
    pace += Text(endings or "no call has ended lately", style="dim")
    parts: list[RenderableType] = [_figures(overview), pace, *_warnings(seen)]
    if overview["queues"]:
        parts += [Text(), _queues(overview["queues"])]
    if overview["processes"]:
        parts += [Text(), _processes(overview["processes"])]
    return Group(*parts)


def sparkline(values: Sequence[float]) -> str:
    """One character for each value, the greatest at full height."""
    most = max(values, default=0)
    return "".join(BARS[round(value / most * (len(BARS) - 1))] if most else BARS[0] for value in values)


async def _watch(remote: Remote, every_s: float) -> None:
    """Retries while the platform cannot be reached: operators watch this most during an outage."""
    transport = Transport(remote.url, remote.key, every_s + 5)
    try:
        with Live(console=out, screen=not remote.as_json and out.is_terminal, auto_refresh=False) as display:
            while True:
                try:
                    seen = await fetch(transport)
                    print(json.dumps(seen)) if remote.as_json else display.update(view(seen), refresh=True)
                except Unreachable as error:
                    display.update(Text(f"{error} Retrying.", style="red"), refresh=True)
                except Exception as error:
                    raise ControlCommandError(str(error)) from error
                await asyncio.sleep(every_s)
    finally:
        await transport.close()


def _figures(overview: Mapping[str, Any]) -> RenderableType:
    table = Table.grid(padding=(0, 4))
    table.add_row("calls now", "channels", "dials/s", "late p50", "p99", "leads", style="dim")
    slices, channels = overview["slices"], overview["channels"]
    last = next((each for each in reversed(slices) if each["p50_s"] is not None), None)
    about = overview["leads_about"]
    table.add_row(
        str(sum(overview["calls"].values())),
        f"{channels['held']} / {channels['capacity']}",
        f"{slices[-1]['dials'] / overview['slice_s']:.1f}" if slices else "0",
        f"{last['p50_s'] * 1000:.0f} ms" if last else "–",
        f"{last['p99_s'] * 1000:.0f} ms" if last else "–",
        f"≈ {about:,}" if about is not None else "–",
        style="bold",
    )
    return table


def _warnings(seen: Mapping[str, Any]) -> list[RenderableType]:
    stopped = [stop for stop in seen["stops"] if stop["state"] == "stopped"]
    lines = [f"STOPPED {stop['scope']} {stop['subject']}: {stop['reason'] or ''}" for stop in stopped]
    lines += [f"ALARM {alarm['severity']} {alarm['name']} {alarm['subject']}" for alarm in seen["alarms"]]
    if seen["overview"]["is_led"] is False:
        lines.append("NO LEADER: measured alarms are not evaluated")
    return [Text(line, style="bold red") for line in lines]


def _queues(queues: Sequence[Mapping[str, Any]]) -> RenderableType:
    table = Table("merchant", "pool", "due now", "waiting", "first due", "waits for")
    for queue in queues[:QUEUES_SHOWN]:
        waits_for = (queue.get("waits_for") or "–").replace("_", " ")
        if queue.get("waits_until") is not None:
            about = "about " if queue.get("is_until_estimated") else ""
            waits_for += f", until {about}{queue['waits_until']}"
        counts = str(queue["due"]), str(queue["waiting"])
        table.add_row(queue["merchant_id"], queue["pool"], *counts, queue["first_due_at"], waits_for)
    return table


def _processes(processes: Sequence[Mapping[str, Any]]) -> RenderableType:
    table = Table("process", "roles", "last report")
    for process in processes:
        name = process["id"] + (" (leader)" if process["is_leader"] else "")
        style = "" if process["is_alive"] else "red"
        table.add_row(name, ", ".join(process["roles"]), f"{process['silent_s']:.0f} s ago", style=style)
    return table
