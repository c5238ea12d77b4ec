"""`trunkline campaigns`: make, fill, start, watch and stop campaigns, over the API of a running platform.

trunkline campaigns create --merchant acme-store --name "Renewals" --policy policy.json
trunkline campaigns upload 01a1de62-2409-736d-8c5a-52d9153eecca people.csv --map phone:Mobile
trunkline campaigns start 01a1de62-2409-736d-8c5a-52d9153eecca
trunkline campaigns progress 01a1de62-2409-736d-8c5a-52d9153eecca --watch
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from trunkline.cli.control import (
    ControlCommandError,
    Limit,
    RemoteContext,
    Values,
    api_path,
    options,
    remote_group,
)
from trunkline.cli.uploads import Atomic, Columns, File, Form, bar_out, upload_file
from trunkline.client.transport import Transport

app = remote_group("Create, fill, start, watch and stop campaigns.")

CampaignId = Annotated[str, typer.Argument(help="The id of a campaign.")]
PolicyFile = Annotated[
    Path | None, typer.Option(exists=True, dir_okay=False, help="Its calling policy, a file of JSON.")
]
Pool = Annotated[str, typer.Option(help="The number pool to dial from.")]
Priority = Annotated[int | None, typer.Option(min=1, max=99, help="1 is called first.")]
Attempts = Annotated[
    int | None, typer.Option(min=1, max=20, help="The maximum number of attempts for each person.")
]
Starts = Annotated[str, typer.Option(help="The start, for example 2030-05-01T09:00:00+02:00.")]
Ends = Annotated[str, typer.Option(help="The end, at which the campaign stops by itself.")]
AbandonMax = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=0.1,
        help="Overdial: the maximum share of answered calls without an agent, for example 0.03.",
    ),
]
Ramp = Annotated[int, typer.Option(min=0, max=86_400, help="Seconds over which the pace ramps up.")]

# A million rows over a slow connection, and the time to load them.
UPLOAD_TIMEOUT_S = 3600.0
RESULTS_TIMEOUT_S = 3600.0
WATCH_S = 2.0
_ROW = ("id", "merchant_id", "name", "status", "pool", "priority", "max_attempts", "starts_at", "ends_at")
_PROGRESS = (
    "status", "leads", "waiting", "to_be_retried", "calling", "finished", "outcomes", "attempts",
    "finished_per_minute", "next_due_at", "estimated_end_at", "abandonment",
)  # fmt: skip


@app.command()
def create(
    ctx: RemoteContext,
    name: Annotated[str, typer.Option(help="The name of the campaign.")],
    merchant_id: Annotated[str, typer.Option("--merchant", help="The merchant of the campaign.")] = "",
    policy: PolicyFile = None,
    pool: Pool = "",
    priority: Priority = None,
    max_attempts: Attempts = None,
    starts_at: Starts = "",
    ends_at: Ends = "",
    request_id: Annotated[
        str, typer.Option(help="Your own id of the request, which makes it safe to repeat.")
    ] = "",
    abandon_max: AbandonMax = None,
) -> None:
    """Create a draft."""
    body = options(ctx) | _policy(policy)
    if body.pop("abandon_max", None) is not None:
        body["policy"] = body.get("policy", {}) | {"abandon_max": abandon_max}
    ctx.obj.post(_ROW, "campaigns", body=body)


@app.command("list")
def list_campaigns(
    ctx: RemoteContext,
    merchant_id: Annotated[str, typer.Option("--merchant", help="Of this merchant.")] = "",
    status: Annotated[str, typer.Option(help="DRAFT, RUNNING, PAUSED, COMPLETED, STOPPING or STOPPED.")] = "",
    limit: Limit = 50,
) -> None:
    """Campaigns, newest first."""
    ctx.obj.get((*_ROW, "finished", "leads"), "campaigns", query=options(ctx))


@app.command()
def show(ctx: RemoteContext, campaign_id: CampaignId) -> None:
    """A campaign with its policy."""
    ctx.obj.get((*_ROW, "policy"), "campaigns", campaign_id)


@app.command()
def change(
    ctx: RemoteContext,
    campaign_id: CampaignId,
    name: Annotated[str, typer.Option(help="The name of the campaign.")] = "",
    policy: PolicyFile = None,
    pool: Pool = "",
    priority: Priority = None,
    max_attempts: Attempts = None,
    starts_at: Starts = "",
    ends_at: Ends = "",
) -> None:
    """Change a draft, or a campaign that is paused."""
    body = options(ctx) | _policy(policy)
    ctx.obj.patch(_ROW, "campaigns", body.pop("campaign_id"), body=body)


@app.command()
def upload(
    ctx: RemoteContext,
    campaign_id: CampaignId,
    file: File,
    columns: Columns = None,
    others: Annotated[str, typer.Option(help="The other columns: payload, ignore or refuse.")] = "payload",
    encoding: Annotated[str, typer.Option(help="utf-8, utf-16, latin-1 or windows-1252.")] = "utf-8",
    form: Form = None,
    atomic: Atomic = False,
) -> None:
    """Upload leads from a file. Exits with status 1 if a row was refused. Safe to repeat."""
    query = [("map", pair) for pair in columns or ()]
    query += [("others", others), ("encoding", encoding), ("atomic", str(atomic).lower())]
    path = f"{api_path('campaigns', campaign_id, 'leads')}?{urlencode(query)}"
    upload_file(ctx.obj, file, form, path, {}, UPLOAD_TIMEOUT_S)


@app.command()
def start(ctx: RemoteContext, campaign_id: CampaignId, ramp: Ramp = 0) -> None:
    """Start calling its leads, now or at its start time."""
    ctx.obj.post(_ROW, "campaigns", campaign_id, "start", body={"ramp_s": ramp})


@app.command()
def pause(
    ctx: RemoteContext, campaign_id: CampaignId, reason: Annotated[str, typer.Option(help="Why.")] = "paused"
) -> None:
    """Start no new calls, within a second."""
    ctx.obj.post(_ROW, "campaigns", campaign_id, "pause", body={"reason": reason})


@app.command()
def resume(ctx: RemoteContext, campaign_id: CampaignId, ramp: Ramp = 0) -> None:
    """Resume after a pause."""
    ctx.obj.post(_ROW, "campaigns", campaign_id, "resume", body={"ramp_s": ramp})


@app.command()
def stop(
    ctx: RemoteContext,
    campaign_id: CampaignId,
    reason: Annotated[
        str, typer.Option(help="The reason, for the outcome of each lead that was not called.")
    ] = "stopped",
    hang_up: Annotated[bool, typer.Option("--hang-up", help="Hang up the live calls.")] = False,
) -> None:
    """Stop it for good."""
    ctx.obj.post(_ROW, "campaigns", campaign_id, "stop", body={"reason": reason, "hang_up": hang_up})


@app.command()
def progress(
    ctx: RemoteContext,
    campaign_id: CampaignId,
    watch: Annotated[bool, typer.Option("--watch", help="Show a bar until all have finished.")] = False,
) -> None:
    """The progress, and the estimated end."""
    path = api_path("campaigns", campaign_id, "progress")
    ctx.obj.show(ctx.obj.ask(lambda api: _watch(api, path) if watch else api.get(path)), _PROGRESS)


@app.command()
def results(ctx: RemoteContext, campaign_id: CampaignId) -> None:
    """Every lead as CSV, to the standard output."""
    path = api_path("campaigns", campaign_id, "results")

    async def write(api: Transport) -> None:
        async for piece in api.download(path, RESULTS_TIMEOUT_S):
            sys.stdout.write(piece.decode())

    ctx.obj.ask(write)


async def _watch(api: Transport, path: str) -> Any:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[end]}"),
    )
    with Progress(*columns, console=bar_out) as bars:
        bar = bars.add_task("finished", total=1.0, end="")
        while True:
            current = await api.get(path)
            bars.update(bar, completed=current["share"], end=current["estimated_end_at"] or "")
            if current["status"] == "STOPPED" or current["finished"] == current["leads"]:
                return current
            await asyncio.sleep(WATCH_S)


def _policy(file: Path | None) -> Values:
    if file is None:
        return {}
    try:
        return {"policy": json.loads(file.read_text(encoding="utf-8"))}
    except ValueError as error:
        raise ControlCommandError(f"{file} is not JSON: {error}") from error
