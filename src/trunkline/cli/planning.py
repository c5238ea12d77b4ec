"""Makes and shows a plan. Apart from its command, because its imports take long."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import typer
from pydantic import ValidationError
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.table import Table

from trunkline.campaigns.plan import PlanSettings, plan_file
from trunkline.campaigns.rows import parse_mapping
from trunkline.cli.console import out
from trunkline.cli.uploads import TYPES, Format, bar_out
from trunkline.errors import TrunklineError
from trunkline.leads.calling_policy import resolve
from trunkline.leads.phones import BadPhone, to_e164
from trunkline.leads.uploads import BrokenUpload

BLOCK = 1024 * 1024


class PlanError(TrunklineError):
    """The plan cannot be made."""


def run(
    people: Path,
    kind: Format,
    policy: Path | None,
    do_not_call: Path | None,
    pairs: list[str],
    given: dict[str, Any],
    *,
    as_json: bool,
) -> None:
    now = datetime.now(UTC)
    if policy is not None:
        try:
            given["policy"] = json.loads(policy.read_text(encoding="utf-8"))
        except ValueError as error:
            raise PlanError(f"{policy.name} is not JSON: {error}") from None
    settings, names = _settings(now, given), parse_mapping(pairs, "payload")
    if isinstance(names, str):
        raise typer.BadParameter(names)
    lines = do_not_call.read_text(encoding="utf-8").splitlines() if do_not_call else ()
    phones = (to_e164(line.strip(), settings.default_region) for line in lines)
    listed = frozenset(phone for phone in phones if not isinstance(phone, BadPhone))
    rules = resolve(campaign=settings.policy)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    try:
        with people.open("rb") as source, Progress(*columns, console=bar_out) as progress:
            blocks = _blocks(source, progress)
            report = plan_file(blocks, TYPES[kind], settings, rules, names, now, listed)
    except BrokenUpload as error:
        raise PlanError(f"{people.name}: {error.message}") from None
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        _show(report)


def _blocks(source: BinaryIO, progress: Progress) -> Iterator[bytes]:
    bar = progress.add_task(Path(source.name).name, total=Path(source.name).stat().st_size)
    while block := source.read(BLOCK):
        yield block
        progress.advance(bar, len(block))


def _settings(now: datetime, given: dict[str, Any]) -> PlanSettings:
    try:
        settings = PlanSettings.model_validate(given)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise PlanError(problems) from None
    if wrong := settings.problems(now):
        raise PlanError("; ".join(f"{each.field}: {each.error}" for each in wrong))
    return settings


def _show(report: dict[str, Any]) -> None:
    sums = Table("rows", "people", "calls", "answered", "not reached", "first call", "end")
    names = ("rows", "people", "calls", "answered", "not_reached", "first_call_at", "ends_at")
    sums.add_row(*(str(report[name] if report[name] is not None else "") for name in names))
    out.print(sums)
    for title, name in (("not called", "not_called"), ("minutes held back by", "held_back_by")):
        if counts := report[name]:
            table = Table(title, "")
            for reason, count in sorted(counts.items()):
                table.add_row(reason, str(count))
            out.print(table)
    hours = Table("hour (UTC)", "calls", "answered")
    for hour in report["calls_per_hour"]:
        hours.add_row(hour["hour"][:16], str(hour["calls"]), str(hour["answered"]))
    out.print(hours)
