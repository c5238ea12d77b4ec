"""Uploads of leads with a report of the rows, and downloads of results. Streamed, never in memory as a whole."""

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from trunkline.console.api_client import ApiRefused
from trunkline.console.page_request import Download, PageRequest, Shown, Upload
from trunkline.leads.upload_report import by_reason

TYPES = {
    "csv": "text/csv",
    "json": "application/json",
    "ndjson": "application/x-ndjson",
    "jsonl": "application/x-ndjson",
}
# How many problems are shown; the API's own response has every row.
PROBLEMS_SHOWN = 100


def taking(path: str) -> Upload:
    """An upload that is streamed to the API. A refused file gets a report too: it says from which row on."""

    async def take(visit: PageRequest) -> Shown:
        report: Mapping[str, Any] | None = None
        problem: ApiRefused | None = None
        kind = TYPES.get((visit.given("file") or "").rpartition(".")[2].lower())
        query = {"results": "problems", "map": visit.request.query_params.getlist("map")}
        try:
            if kind is None:
                raise ApiRefused(
                    415, "unsupported_media_type", "Choose a file that ends in .csv, .json or .ndjson."
                )
            receive = visit.request.receive
            report = await visit.api.send("POST", visit.path(path), receive, kind, query=query)
        except ApiRefused as refused:
            problem = refused
        problems = by_reason(report["results"]) if report else []
        more = max(0, len(problems) - PROBLEMS_SHOWN)
        shown = {"report": report, "problems": problems[:PROBLEMS_SHOWN], "more": more, "problem": problem}
        return Shown("upload_report.html", shown)

    return take


def giving(path: str) -> Download:
    """A download: the API's own response."""

    async def give(visit: PageRequest) -> Response:
        return PassedThrough(visit, visit.path(path))

    return give


class PassedThrough(Response):
    """The API's own response, streamed."""

    def __init__(self, visit: PageRequest, path: str):
        super().__init__()
        self._visit = visit
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._visit.api.pass_on(self._path, receive, send)
