"""Leads: create one or 100,000 of them, change, abort and reopen them."""

import asyncio
import json
import random
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict, Unpack
from uuid import UUID, uuid4

from trunkline.client.decoding import decoded
from trunkline.client.errors import ApiError, FieldError, Unreachable
from trunkline.client.models import Aborted, Reopened, RowProblem, UploadReport
from trunkline.client.operations import PAGE_SIZE_MAX, ROOT, Key, given, moment, path, plain
from trunkline.client.transport import Transport, is_transient
from trunkline.schema.leads import Lead

LEAD_TRIES = 4
LEAD_FIRST_WAIT_S = 0.25
UPLOAD_TIMEOUT_S = 600.0
NDJSON = "application/x-ndjson"
# Rows are sent in chunks of about this size.
PIECE_BYTES = 64 * 1024


class LeadChanges(TypedDict, total=False):
    """What may change while a lead waits. Omitted fields do not change."""

    scheduled_at: datetime
    expires_at: datetime | None
    priority: int
    pool: str
    payload: Mapping[str, Any]
    max_attempts: int
    reporting_webhook_url: str | None


class LeadArguments(TypedDict, total=False):
    """The fields of a lead that is created."""

    phone: str | None
    merchant_id: str | None
    request_id: str | None
    payload: Mapping[str, Any] | None
    scheduled_at: datetime | None
    expires_at: datetime | None
    timezone: str | None
    priority: int | None
    campaign_id: UUID | None
    pool: str | None
    max_attempts: int | None
    reporting_webhook_url: str | None


class LeadsToAbort(TypedDict, total=False):
    lead_ids: Sequence[Key] | None
    request_ids: Sequence[str] | None
    merchant_id: str | None
    campaign_id: UUID | None
    phone: str | None
    hang_up: bool


class ReopeningArguments(TypedDict, total=False):
    """How a lead is reopened."""

    request_id: str | None
    scheduled_at: datetime | None
    max_attempts: int | None


class LeadsToReopen(ReopeningArguments, total=False):
    lead_ids: Sequence[Key] | None
    outcomes: Sequence[str] | None
    finished_since: datetime | None
    finished_before: datetime | None
    merchant_id: str | None
    campaign_id: UUID | None
    phone: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadSelection:
    status: str | None = None
    merchant_id: str | None = None
    campaign_id: UUID | None = None
    phone: str | None = None
    request_id: str | None = None
    page_size: int = PAGE_SIZE_MAX


async def create_lead(api: Transport, **lead: Unpack[LeadArguments]) -> Lead:
    """Create a lead. The same `request_id` again returns the same lead, which is not called twice.

    Pass your own id (an order, a ticket) if your process may die and retry; without one, one is generated.
    """
    return decoded(Lead, await _post_until_answered(api, f"{ROOT}/leads", lead))


async def create_leads(
    api: Transport, rows: Iterable[Mapping[str, Any]], *, atomic: bool = False
) -> UploadReport:
    """Create up to 100,000 leads: each row has the fields of `create_lead`, its `request_id` included.

    A refused row does not affect the others, unless `atomic` is set: then it is an `ApiError`, and none is
    accepted.
    """
    return await upload_leads(api, _lines(rows), NDJSON, atomic=atomic)


async def upload_leads(
    api: Transport,
    body: AsyncIterable[bytes],
    content_type: str,
    *,
    atomic: bool = False,
    timeout_s: float = UPLOAD_TIMEOUT_S,
) -> UploadReport:
    """The same from streamed bytes: CSV (`text/csv`), JSON lines or a JSON array. Sent once; idempotent."""
    params: dict[str, str | int] = {"results": "problems", "atomic": "true" if atomic else "false"}
    answer = await api.upload(f"{ROOT}/leads/bulk", body, content_type, params, timeout_s)
    return report_of(answer)


async def update_lead(api: Transport, lead_id: Key, **changes: Unpack[LeadChanges]) -> Lead:
    """Change or reschedule a lead that waits. An `ApiError` (409) once it is being called or has ended."""
    return decoded(Lead, await api.patch(path("leads", lead_id), plain(changes)))


async def abort_lead(api: Transport, lead_id: Key, reason: str, *, hang_up: bool = False) -> Lead:
    """Do not call it, or not again: a lead that is being called ends with its call."""
    params = {"reason": reason, "hang_up": "true" if hang_up else "false"}
    return decoded(Lead, await api.delete(path("leads", lead_id), dict(params)))


async def abort_leads(api: Transport, reason: str, **which: Unpack[LeadsToAbort]) -> Aborted:
    """By lead ids, by your request ids, or all that match a filter; repeats the request until all are done.

    `request_ids` are of one merchant, up to 1,000 at once.
    """
    body = given(reason=reason, **which)
    done = Aborted(0, 0)
    while True:
        answer = await api.post(f"{ROOT}/leads/abort", body)
        done = Aborted(done.aborted + answer["aborted"], done.cancel_requested + answer["cancel_requested"])
        if answer["complete"]:
            return done


async def reopen_lead(api: Transport, lead_id: Key, reason: str, **how: Unpack[ReopeningArguments]) -> Lead:
    """Call a finished lead again. Windows, limits and lists apply again. The same `request_id` again reopens
    nothing; without one, one is generated."""
    answer = await _post_until_answered(api, path("leads", lead_id, "reopen"), {"reason": reason, **how})
    return decoded(Lead, answer)


async def reopen_leads(api: Transport, reason: str, **which: Unpack[LeadsToReopen]) -> Reopened:
    """By ids, or all that ended with one of these outcomes since a time; repeats the request until all are done."""
    # The same id each time, so that a repetition goes on where the one before ended.
    body = {"reason": reason, **which, "request_id": which.get("request_id") or str(uuid4())}
    reopened = 0
    while True:
        answer = await _post_until_answered(api, f"{ROOT}/leads/reopen", body)
        reopened += answer["reopened"]
        if answer["complete"]:
            return Reopened(reopened, answer["refused"])


async def _post_until_answered(api: Transport, path: str, fields: Mapping[str, Any]) -> Any:
    """For requests that are idempotent by their id."""
    body = given(**{**fields, "request_id": fields.get("request_id") or str(uuid4())})
    for tries in range(1, LEAD_TRIES):
        try:
            return await api.post(path, body)
        except (ApiError, Unreachable) as error:
            if not is_transient(error):
                raise
        # Full jitter, so that many clients do not retry at the same time.
        await asyncio.sleep(random.uniform(0, LEAD_FIRST_WAIT_S * 2**tries))  # noqa: S311
    return await api.post(path, body)


async def _lines(rows: Iterable[Mapping[str, Any]]) -> AsyncIterator[bytes]:
    piece = bytearray()
    for row in rows:
        piece += json.dumps(row, default=_plain).encode() + b"\n"
        if len(piece) >= PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece)


def _plain(value: object) -> str:
    return moment(value) if isinstance(value, datetime) else str(value)


def report_of(answer: Mapping[str, Any]) -> UploadReport:
    sums = {name: answer[name] for name in ("rows", "created", "existing", "conflict", "refused")}
    return UploadReport(**sums, problems=tuple(map(_problem, answer["results"])))


def _problem(row: Mapping[str, Any]) -> RowProblem:
    fields = tuple(FieldError(each["field"], each["error"]) for each in row.get("fields") or ())
    return RowProblem(
        row["row"], row["result"], row.get("request_id"), row.get("code"), row.get("error"), fields
    )
