"""Bulk upload: from the bytes of an upload to batches that a loader writes to Postgres.

    bytes ─► rows ─► requests ─► admissions ─► leads ─► loader
             └────────┴── refused, each with its reason ──┘

Rows are read and checked while the batch before them is loaded. Checking takes our own CPU some 20 µs a row, so the
upload yields to the event loop every 2 ms.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import msgspec
from pydantic import ValidationError

from trunkline.leads import ingest, payloads
from trunkline.leads.ingest import FieldProblem, LeadRefused, LeadRequest
from trunkline.leads.opening_cache import OpeningCache
from trunkline.leads.upload_report import RowResult
from trunkline.leads.uploads import BrokenUpload, Rows, UploadRow
from trunkline.store import leads
from trunkline.store.database import Connection
from trunkline.store.lead_uploads import StagedLead
from trunkline.store.leads import Admission, AdmissionKey, NewLead
from trunkline.store.tenants import Tenant

ROWS_MAX = 100_000
BATCH_ROWS = 5_000
BATCH_BYTES = 4 * 1024 * 1024
TURN_S = 0.002
FIELD_NAME_MAX = 100


class ReadingStore(Protocol):
    def reading(self) -> AbstractAsyncContextManager[Connection]: ...


@dataclass(slots=True)
class Batch:
    """Leads to load, and the results of the refused rows between them."""

    staged: list[StagedLead] = field(default_factory=list)
    refused: list[RowResult] = field(default_factory=list)


class BatchLoader(Protocol):
    async def add(self, batch: Batch) -> None: ...


class LeadCandidate(msgspec.Struct, frozen=True):
    row_no: int
    request: LeadRequest
    key: AdmissionKey


class Turns:
    """Yields to the event loop when this task has run long enough."""

    def __init__(self) -> None:
        self._until_s = time.perf_counter() + TURN_S

    async def next(self) -> None:
        if time.perf_counter() >= self._until_s:
            await asyncio.sleep(0)
            self._until_s = time.perf_counter() + TURN_S


class Intake:
    """One upload in progress."""

    def __init__(
        self,
        rows: Rows,
        store: ReadingStore,
        tenant: Tenant,
        loader: BatchLoader,
        *,
        payload_bytes_max: int,
        rows_max: int | None = None,
        hash_of: Callable[[str], bytes] | None = None,
    ) -> None:
        """`hash_of` makes the hash of a row from its request_id alone, so that other fields do not matter."""
        self._rows = rows
        self._rows_max = rows_max or ROWS_MAX
        self._hash_of = hash_of
        self._store = store
        self._tenant = tenant
        self._loader = loader
        self._payload_bytes_max = payload_bytes_max
        self._admissions: dict[AdmissionKey, Admission | None] = {}
        self._openings = OpeningCache()
        self._turns = Turns()
        self._candidates: list[LeadCandidate] = []
        self._batch = Batch()
        self._bytes = 0
        self.rows_read = 0

    async def feed(self, block: bytes) -> None:
        await self._take(self._rows.feed(block))
        self._bytes += len(block)
        if len(self._batch.staged) >= BATCH_ROWS or self._bytes >= BATCH_BYTES:
            await self.flush()

    async def end(self) -> None:
        await self._take(self._rows.end())
        await self.flush()

    async def flush(self) -> None:
        """Hand over all rows that were read so far."""
        await self._prepare_all()
        batch, self._batch, self._bytes = self._batch, Batch(), 0
        await self._loader.add(batch)

    async def _take(self, rows: Iterator[UploadRow]) -> None:
        """Requests live only as long as their block: a batch of them costs the garbage collector 10 µs a row."""
        await self._read(rows)
        await self._prepare_all()

    async def _prepare_all(self) -> None:
        candidates, self._candidates = self._candidates, []
        await self._admit(candidates)
        for candidate in candidates:
            await self._turns.next()
            self._prepare(candidate, self._batch)

    async def _read(self, rows: Iterator[UploadRow]) -> None:
        for row in rows:
            await self._turns.next()
            if row.no > self._rows_max:
                raise BrokenUpload("too_many_rows", f"An upload has at most {self._rows_max} rows.")
            self.rows_read = row.no
            match _request(row, self._tenant.merchant_id):
                case LeadCandidate() as candidate:
                    self._candidates.append(candidate)
                case RowResult() as refusal:
                    self._batch.refused.append(refusal)

    async def _admit(self, candidates: list[LeadCandidate]) -> None:
        new = list({c.key for c in candidates} - self._admissions.keys())
        if new:
            async with self._store.reading() as connection:
                admissions = await leads.admissions(connection, self._tenant, new)
            self._admissions |= {key: admissions.get(key) for key in new}

    def _prepare(self, candidate: LeadCandidate, batch: Batch) -> None:
        admission = self._admissions[candidate.key]
        if admission is None:
            problem = FieldProblem("merchant_id", "There is no such merchant.")
            batch.refused.append(_refusal(candidate, "unknown_merchant", (problem,)))
            return
        prepared = ingest.prepare(
            candidate.request,
            admission,
            payload_bytes_max=self._payload_bytes_max,
            openings=self._openings,
        )
        match prepared:
            case LeadRefused(problems):
                batch.refused.append(_refusal(candidate, "invalid_request", problems))
            case NewLead() as new:
                if self._hash_of is not None:
                    new = replace(new, request_hash=self._hash_of(new.request_id))
                batch.staged.append(_staged(candidate.row_no, new))


def _request(row: UploadRow, own_merchant_id: str | None) -> LeadCandidate | RowResult:
    if row.error is not None:
        return RowResult(row.no, "refused", code="unreadable", error=row.error)
    try:
        request = LeadRequest.model_validate(row.value)
    except ValidationError as error:
        return RowResult(
            row.no, "refused", _request_id(row.value), code="invalid_request", fields=_problems(error)
        )
    merchant_id = request.merchant_id or own_merchant_id
    if merchant_id is None:
        problem = FieldProblem("merchant_id", "Name the merchant: this key is not bound to one.")
        return RowResult(row.no, "refused", request.request_id, code="invalid_request", fields=(problem,))
    return LeadCandidate(row.no, request, AdmissionKey(merchant_id, request.pool, request.campaign_id))


def _request_id(value: Any) -> str | None:
    """Of a refused row, so that its sender can find it."""
    request_id = value.get("request_id") if isinstance(value, dict) else None
    return request_id[:200].encode("utf-8", "replace").decode() if isinstance(request_id, str) else None


def _problems(error: ValidationError) -> tuple[FieldProblem, ...]:
    return tuple(FieldProblem(_name(each["loc"]), each["msg"]) for each in error.errors())


def _name(loc: tuple[str | int, ...]) -> str:
    """A name may be the client's own text, so it is truncated and cleaned."""
    name = ".".join(map(str, loc)) or "row"
    return name[:FIELD_NAME_MAX].encode("utf-8", "replace").decode()


def _refusal(candidate: LeadCandidate, code: str, problems: tuple[FieldProblem, ...]) -> RowResult:
    return RowResult(candidate.row_no, "refused", candidate.request.request_id, code=code, fields=problems)


def _staged(row_no: int, new: NewLead) -> StagedLead:
    return StagedLead(
        row_no,
        new.id,
        new.reseller_id,
        new.merchant_id,
        new.request_id,
        new.request_hash,
        new.phone,
        new.timezone,
        payloads.encode(new.payload).decode(),
        new.campaign_id,
        new.pool_id,
        new.priority,
        new.max_attempts,
        new.reporting_webhook_url,
        new.scheduled_at,
        new.due_at,
        new.closes_at,
        new.is_deferred,
        new.expires_at,
    )
