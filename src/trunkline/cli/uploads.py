"""Sends a file with a progress bar, and shows the report of its rows."""

from collections.abc import AsyncIterator
from enum import StrEnum
from os import SEEK_END
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from trunkline.cli.console import out
from trunkline.cli.control import Remote
from trunkline.client.errors import ApiError
from trunkline.client.transport import Transport
from trunkline.leads.upload_report import by_reason

# The bar goes to standard error, because programs read standard output.
bar_out = Console(stderr=True)
PIECE_BYTES = 64 * 1024

_PROBLEM = ("count", "result", "code", "why", "rows", "request_ids")
_SUMS = ("rows", "created", "existing", "conflict", "refused")


class Format(StrEnum):
    CSV = "csv"
    NDJSON = "ndjson"
    JSON = "json"


TYPES = {Format.CSV: "text/csv", Format.NDJSON: "application/x-ndjson", Format.JSON: "application/json"}
_SUFFIXES = {".csv": Format.CSV, ".ndjson": Format.NDJSON, ".jsonl": Format.NDJSON, ".json": Format.JSON}


File = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="CSV, JSON lines or a JSON array.")]
Form = Annotated[Format | None, typer.Option("--format", help="Left out: by the file's name.")]
Columns = Annotated[
    list[str] | None, typer.Option("--map", help="field:column, for example phone:Mobile. Repeat it.")
]
Atomic = Annotated[bool, typer.Option("--atomic", help="All rows or none.")]


def format_of(file: Path, given: Format | None) -> Format:
    kind = given or _SUFFIXES.get(file.suffix.lower())
    if kind is None:
        raise typer.BadParameter(f"{file.name}: say what it is, with --format csv, ndjson or json.")
    return kind


def upload_file(
    remote: Remote, file: Path, form: Format | None, path: str, params: dict[str, str | int], timeout_s: float
) -> None:
    """Send a file, and show the report of its rows. Ends with status 1 if a row was refused."""
    kind = format_of(file, form)
    with file.open("rb") as source:
        report = remote.ask(lambda api: _send(api, source, path, kind, params, timeout_s))
    if not remote.as_json:
        show_problems(report["results"])
    remote.show(report, _SUMS)
    if report["results"]:
        raise typer.Exit(1)


async def _send(
    api: Transport, source: BinaryIO, path: str, kind: Format, params: dict[str, str | int], timeout_s: float
) -> Any:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=bar_out) as progress:
            return await api.upload(path, _read(source, progress), TYPES[kind], params, timeout_s)
    except ApiError as error:
        show_problems((error.report or {}).get("results", []))
        raise


async def _read(source: BinaryIO, progress: Progress) -> AsyncIterator[bytes]:
    """The platform reads no faster than it loads rows, so the bar shows the loaded part."""
    size = source.seek(0, SEEK_END)
    source.seek(0)
    bar = progress.add_task(Path(source.name).name, total=size)
    while piece := source.read(PIECE_BYTES):
        yield piece
        progress.advance(bar, len(piece))


def show_problems(results: list[dict[str, Any]]) -> None:
    if results:
        table = Table(*_PROBLEM)
        for problem in by_reason(results):
            table.add_row(*(str(getattr(problem, column)) for column in _PROBLEM))
        out.print(table)
