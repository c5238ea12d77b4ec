"""Many leads in one request: a JSON array, JSON lines or CSV, read and loaded as it arrives."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import StreamingResponse

from trunkline.api.auth import API_ROOT, LeadsKey
from trunkline.api.deps import Api, Deps
from trunkline.api.errors import ApiError, store_unavailable
from trunkline.api.models import WRITE_ERRORS, ErrorOut, FieldErrorOut, Responses
from trunkline.api.routes.leads import schedule_best_effort
from trunkline.errors import StoreUnavailable
from trunkline.leads.bulk import AllOrNothing, Intake, PieceByPiece, Undone
from trunkline.leads.ingest import EXAMPLE, LeadRequest
from trunkline.leads.upload_report import UploadReport
from trunkline.leads.uploads import BrokenUpload, CsvLines, JsonArray, JsonLines, Rows
from trunkline.store.tenants import Tenant
from trunkline.telemetry import get_logger

log = get_logger(__name__)
router = APIRouter(prefix=f"{API_ROOT}/leads", tags=["leads"])

# Rows are parsed from blocks of this size, whatever the size of network chunks.
BLOCK_BYTES = 64 * 1024
RESULTS_PER_PIECE = 500
NDJSON = "application/x-ndjson"

AnyLoader = AllOrNothing | PieceByPiece
READERS: dict[str, Callable[[], Rows]] = {
    "application/json": JsonArray,
    NDJSON: JsonLines,
    "application/jsonl": JsonLines,
    "text/csv": partial(CsvLines, tuple(LeadRequest.model_fields), frozenset({"priority", "max_attempts"})),
}


class UploadQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    atomic: bool = Field(False, description="All rows or none: one refused row rolls the others back.")
    results: Literal["all", "problems"] = Field(
        "all", description="Which rows the response lists: all, or those that created no lead."
    )


class RowOut(BaseModel):
    """What became of a row."""

    row: int = Field(description="Counted from 1, without the header of a CSV.")
    result: Literal["created", "existing", "conflict", "refused"] = Field(description="What became of it.")
    request_id: str | None = Field(None, description="The id in the row.")
    id: UUID | None = Field(None, description="The lead's.")
    code: str | None = Field(None, description="Why the row is a conflict or was refused, for programs.")
    error: str | None = Field(None, description="What is wrong, for people.")
    fields: list[FieldErrorOut] | None = None


class UploadOut(BaseModel):
    """What became of the rows of an upload."""

    rows: int = Field(description="Rows that were read.")
    created: int = Field(description="Rows that are new leads.")
    existing: int = Field(description="Sent before with the same content, in this upload or an earlier one.")
    conflict: int = Field(description="Sent before with other content.")
    refused: int = Field(description="Rows that are wrong.")
    results: list[RowOut] = Field(description="Row by row.")


class FailedUploadOut(ErrorOut):
    """An upload that ended early, with what had been done."""

    report: UploadOut | None = Field(
        None, description="The rows accepted so far, and up to 1000 rows that were not."
    )


_CSV = "request_id,merchant_id,phone,payload.order\norder-4711,acme-store,+14155550123,4711\n"
FAILED: Responses = {
    status: {"model": FailedUploadOut, "description": text}
    for status, text in (
        (400, "The body cannot be read any further."),
        (408, "The body arrived too slowly."),
        (413, "The body is too large, or has too many rows."),
        (422, "With `atomic`: a row was refused, so all were."),
        (503, "The database cannot be reached. Send the same request again."),
    )
}


UPLOADED: Responses = {
    **WRITE_ERRORS,
    **FAILED,
    200: {
        "model": UploadOut,
        "description": "The result of each row.",
        "content": {NDJSON: {"schema": {"type": "string"}}},
    },
}


def request_body(row: dict[str, str], array: Sequence[object], line: str, csv: str) -> dict[str, Any]:
    """The body of an upload as OpenAPI describes it: the schema of a row, and an example in each format."""
    text = {"type": "string"}
    return {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"type": "array", "items": row}, "example": array},
                NDJSON: {"schema": text, "example": line},
                "text/csv": {"schema": text, "example": csv},
            },
        }
    }


@router.post(
    "/bulk",
    response_model=None,
    responses=UPLOADED,
    openapi_extra=request_body(
        {"$ref": "#/components/schemas/LeadRequest"},
        [EXAMPLE],
        f"{msgspec.json.encode(EXAMPLE).decode()}\n",
        _CSV,
    ),
    summary="Create many leads",
)
async def create_leads(
    request: Request, query: Annotated[UploadQuery, Query()], who: LeadsKey, api: Deps
) -> StreamingResponse:
    """Up to 100,000 rows, each as in `POST /leads`. A refused row does not affect the others, unless `atomic` is set.

    Idempotent, like a single lead: rows that were accepted before are `existing`. The response is JSON, or JSON lines
    by the header Accept.
    """
    rows = READERS[kind_of(request)]()
    report = UploadReport(problems_only=query.results == "problems")
    return await take_upload(request, api, who.tenant, blocks(request), rows, report, is_atomic=query.atomic)


async def take_upload(
    request: Request,
    api: Api,
    tenant: Tenant,
    body: AsyncIterator[bytes],
    rows: Rows,
    report: UploadReport,
    *,
    is_atomic: bool,
    rows_max: int | None = None,
    hash_of: Callable[[str], bytes] | None = None,
) -> StreamingResponse:
    """Load the rows of the body, and report the result of each."""
    loader = (AllOrNothing if is_atomic else PieceByPiece)(
        api.store, report, partial(schedule_best_effort, api)
    )
    intake = Intake(
        rows,
        api.store,
        tenant,
        loader,
        payload_bytes_max=api.deps.limits.payload_bytes_max,
        rows_max=rows_max,
        hash_of=hash_of,
    )
    try:
        async with api.uploads:
            await _take_in(body, intake, loader)
        if report.problems and isinstance(loader, AllOrNothing):
            raise _none_taken(report, intake.rows_read)
    except BaseException as error:
        report.close()
        if isinstance(error, BrokenUpload | StoreUnavailable | ApiError):
            raise _with_report(upload_problem(error), report) from error.__cause__
        raise
    finally:
        await loader.close()
    is_lines = NDJSON in request.headers.get("accept", "")
    parts = _as_lines(report) if is_lines else _as_json(report)
    return StreamingResponse(_pieces(report, parts), media_type=NDJSON if is_lines else "application/json")


async def _take_in(body: AsyncIterator[bytes], intake: Intake, loader: AnyLoader) -> None:
    try:
        async for block in body:
            await intake.feed(block)
        await intake.end()
    except (BrokenUpload, ApiError):
        # Rows that were loaded before stay, unless the upload is atomic.
        if isinstance(loader, PieceByPiece):
            await intake.flush()
            await loader.finish()
        raise
    with suppress(Undone):
        await loader.finish()


async def blocks(request: Request) -> AsyncIterator[bytes]:
    """The body in blocks of `BLOCK_BYTES`, and the last one."""
    held = bytearray()
    async for chunk in request.stream():
        held += chunk
        if len(held) >= BLOCK_BYTES:
            yield bytes(held)
            held.clear()
    yield bytes(held)


def kind_of(request: Request) -> str:
    """The content type of an upload, one of the supported ones."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.headers.get("content-encoding", "identity") != "identity":
        raise ApiError(415, "unsupported_media_type", "Send the body as it is, without Content-Encoding.")
    if kind not in READERS:
        kinds = ", ".join(READERS)
        raise ApiError(415, "unsupported_media_type", f"Send the rows as one of these: {kinds}.")
    return kind


def _none_taken(report: UploadReport, rows: int) -> ApiError:
    bad = report.tally.conflict + report.tally.refused
    report.tally.rows = rows
    return ApiError(422, "rows_refused", f"{bad} of {rows} rows cannot be taken in, so none was. See report.")


def upload_problem(error: BrokenUpload | StoreUnavailable | ApiError) -> ApiError:
    match error:
        case BrokenUpload(code=code, message=message):
            return ApiError(413 if code == "too_many_rows" else 400, code, message)
        case ApiError():
            return error
        case _:
            log.warning("leads.upload_cut_short", reason=str(error))
            return store_unavailable()


def _with_report(problem: ApiError, report: UploadReport) -> ApiError:
    """Adds how far the upload has come."""
    taken = report.tally.created + report.tally.existing
    if taken:
        problem.message += (
            f" {taken} rows before it were taken in. They are recognised if you send them again."
        )
    results = [msgspec.to_builtins(each) for each in report.problems]
    problem.more["report"] = asdict(report.tally) | {"results": results}
    return problem


def _as_lines(report: UploadReport) -> Iterator[bytes]:
    yield from report.lines()
    yield msgspec.json.encode({"summary": asdict(report.tally)}) + b"\n"


def _as_json(report: UploadReport) -> Iterator[bytes]:
    yield msgspec.json.encode(asdict(report.tally))[:-1] + b',"results":['
    for nth, line in enumerate(report.lines()):
        yield b"," + line if nth else line
    yield b"]}"


async def _pieces(report: UploadReport, parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Joined to chunks of a few hundred results, yielding the event loop between them."""
    try:
        while piece := b"".join(islice(parts, RESULTS_PER_PIECE)):
            yield piece
            await asyncio.sleep(0)
    finally:
        report.close()
