"""Uploads of leads with a report of the rows, and downloads of results. Streamed, never in memory as a whole."""

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from trunkline.console.api_client import ApiRefused, segment
from trunkline.console.page_request import PageRequest, Shown
from trunkline.leads.upload_report import by_reason

TYPES = {
    "csv": "text/csv",
    "json": "application/json",
    "ndjson": "application/x-ndjson",
    "jsonl": "application/x-ndjson",
}
# How many problems are shown; the API's own response has every row.
PROBLEMS_SHOWN = 100


async def take_leads(visit: PageRequest) -> Shown:
    return await _take(visit, "/leads/bulk")


async def take_campaign(visit: PageRequest) -> Shown:
    return await _take(visit, f"/campaigns/{segment(visit.part('campaign_id'))}/leads")


async def give_results(visit: PageRequest) -> Response:
    return PassedThrough(visit, f"/campaigns/{segment(visit.part('campaign_id'))}/results")


async def give_export(visit: PageRequest) -> Response:
    return PassedThrough(visit, f"/jobs/{segment(visit.part('job_id'))}/file")


class PassedThrough(Response):
    """The API's own response, streamed."""

    def __init__(self, visit: PageRequest, path: str):
        super().__init__()
        self._visit = visit
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._visit.api.pass_on(self._path, receive, send)


async def _take(visit: PageRequest, path: str) -> Shown:
    """Streamed to the API. A refused file gets a report too: it says from which row on."""
    name = visit.given("file") or ""
    kind = TYPES.get(name.rpartition(".")[2].lower())
    if kind is None:
        problem = ApiRefused(
            415, "unsupported_media_type", "Choose a file that ends in .csv, .json or .ndjson."
        )
        return Shown("upload_report.html", _report(None, problem))
    query = {"results": "problems", "map": visit.request.query_params.getlist("map")}
    try:
        report = await visit.api.send("POST", path, visit.request.receive, kind, query=query)
    except ApiRefused as refused:
        return Shown("upload_report.html", _report(None, refused))
    return Shown("upload_report.html", _report(report, None))


def _report(report: Mapping[str, Any] | None, problem: ApiRefused | None) -> dict[str, Any]:
    problems = by_reason(report["results"]) if report else []
    return {
        "report": report,
        "problems": problems[:PROBLEMS_SHOWN],
        "more": max(0, len(problems) - PROBLEMS_SHOWN),
        "problem": problem,
    }
