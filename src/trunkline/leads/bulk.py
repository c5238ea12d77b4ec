"""Bulk upload: from the bytes of an upload to leads in Postgres.

    bytes ─► rows ─► requests ─► admissions ─► leads ─► loader
             └────────┴── refused, each with its reason ──┘

Rows are read and checked while the batch before them is loaded. Checking takes our own CPU some 20 µs a row, so the
upload yields to the event loop every 2 ms. There are two loaders: piece by piece, where a bad row affects no other, and
all of it or nothing.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from heapq import merge
from operator import attrgetter
from tempfile import TemporaryFile
from typing import Any, Protocol
from uuid import UUID

import msgspec
from pydantic import ValidationError

from trunkline.leads import ingest
from trunkline.leads.ingest import FieldProblem, LeadRefused, LeadRequest
from trunkline.leads.upload_report import RowResult, UploadReport
from trunkline.leads.uploads import BrokenUpload, Rows, UploadRow
from trunkline.store import leads
from trunkline.store.database import Connection
from trunkline.store.leads import (
    Admission,
    AdmissionKey,
    KnownLead,
    ListedPerson,
    NewLead,
    SkippedRows,
    StagedLead,
)
from trunkline.store.tenants import Tenant
from trunkline.value import replace

ROWS_MAX = 100_000
BATCH_ROWS = 5_000
BATCH_BYTES = 4 * 1024 * 1024
TURN_S = 0.002
FIELD_NAME_MAX = 100
BATCH_TIMEOUT_S = 30.0
# 100,000 leads in one statement take some seconds.
WHOLE_TIMEOUT_S = 120.0
# This many of the first leads are scheduled at once; the loader of the schedule brings the others.
SCHEDULED_MAX = 100

OnLoaded = Callable[[Sequence[UUID]], Awaitable[object]]


class ReadingStore(Protocol):
    def reading(self) -> AbstractAsyncContextManager[Connection]: ...


class WritingStore(Protocol):
    def writing(self, *, timeout_s: float | None = None) -> AbstractAsyncContextManager[Connection]: ...


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
        self._turns = Turns()
        self._candidates: list[LeadCandidate] = []
        self._batch = Batch()
        self._bytes = 0
        self.rows_read = 0

    async def feed(self, block: bytes) -> None:
        await self._read(self._rows.read(block))
        # Requests live only as long as their block: a batch of them costs the garbage collector 10 µs a row.
        await self._prepare()
        self._bytes += len(block)
        if len(self._batch.staged) >= BATCH_ROWS or self._bytes >= BATCH_BYTES:
            await self.flush()

    async def end(self) -> None:
        await self._read(self._rows.read(b"", is_end=True))
        await self.flush()

    async def flush(self) -> None:
        """Hand over all rows that were read so far."""
        await self._prepare()
        batch, self._batch, self._bytes = self._batch, Batch(), 0
        await self._loader.add(batch)

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

    async def _prepare(self) -> None:
        candidates, self._candidates = self._candidates, []
        if new := list({each.key for each in candidates} - self._admissions.keys()):
            async with self._store.reading() as connection:
                admissions = await leads.admissions(connection, self._tenant, new)
            self._admissions |= {key: admissions.get(key) for key in new}
        for candidate in candidates:
            await self._turns.next()
            self._add(candidate, self._admissions[candidate.key])

    def _add(self, candidate: LeadCandidate, admission: Admission | None) -> None:
        if admission is None:
            code, problem = "unknown_merchant", FieldProblem("merchant_id", "There is no such merchant.")
            new: NewLead | LeadRefused = LeadRefused((problem,))
        else:
            code = "invalid_request"
            new = ingest.prepare(candidate.request, admission, payload_bytes_max=self._payload_bytes_max)
        if isinstance(new, LeadRefused):
            request_id = candidate.request.request_id
            refusal = RowResult(candidate.row_no, "refused", request_id, code=code, fields=new.problems)
            self._batch.refused.append(refusal)
            return
        if self._hash_of is not None:
            new = replace(new, request_hash=self._hash_of(new.request_id))
        values = (*msgspec.structs.astuple(new), candidate.row_no)
        self._batch.staged.append(StagedLead(*values))


def _request(row: UploadRow, own_merchant_id: str | None) -> LeadCandidate | RowResult:
    if row.error is not None:
        return RowResult(row.no, "refused", code="unreadable", error=row.error)
    try:
        request = LeadRequest.model_validate(row.value)
    except ValidationError as error:
        problems = tuple(FieldProblem(_name(each["loc"]), each["msg"]) for each in error.errors())
        return RowResult(row.no, "refused", _request_id(row.value), code="invalid_request", fields=problems)
    merchant_id = request.merchant_id or own_merchant_id
    if merchant_id is None:
        problem = FieldProblem("merchant_id", "Name the merchant: this key is not bound to one.")
        return RowResult(row.no, "refused", request.request_id, code="invalid_request", fields=(problem,))
    return LeadCandidate(row.no, request, AdmissionKey(merchant_id, request.pool, request.campaign_id))


def _request_id(value: Any) -> str | None:
    """Of a refused row, so that its sender can find it."""
    request_id = value.get("request_id") if isinstance(value, dict) else None
    return request_id[:200].encode("utf-8", "replace").decode() if isinstance(request_id, str) else None


def _name(loc: tuple[str | int, ...]) -> str:
    """A name may be the client's own text, so it is truncated and cleaned."""
    name = ".".join(map(str, loc)) or "row"
    return name[:FIELD_NAME_MAX].encode("utf-8", "replace").decode()


class PieceByPiece:
    """Each batch is a transaction of its own, loaded while the next one is being read."""

    def __init__(self, store: WritingStore, report: UploadReport, on_loaded: OnLoaded):
        self._store = store
        self._report = report
        self._on_loaded = on_loaded
        self._to_schedule = SCHEDULED_MAX
        self._loading: asyncio.Task[None] | None = None

    async def add(self, batch: Batch) -> None:
        await self.finish()
        self._loading = asyncio.create_task(self._load(batch), name="load leads")

    async def finish(self) -> None:
        """Wait for the batch that is being loaded."""
        loading, self._loading = self._loading, None
        if loading is not None:
            await loading

    async def close(self) -> None:
        """The client has disconnected and gets no report; the batch in progress is loaded all the same."""
        with suppress(Exception):
            await self.finish()

    async def _load(self, batch: Batch) -> None:
        skipped: SkippedRows = {}
        if batch.staged:
            async with self._store.writing(timeout_s=BATCH_TIMEOUT_S) as tx:
                skipped = await _load(tx, [batch.staged], BATCH_TIMEOUT_S)
        await _record(self._report, batch.refused, _results(batch.staged, skipped))
        first = [lead.id for lead in batch.staged if lead.row_no not in skipped][: self._to_schedule]
        self._to_schedule -= len(first)
        if first:
            await self._on_loaded(first)


class AllOrNothing:
    """Stores the leads on disk until the last row has been read: no transaction waits for a slow client."""

    def __init__(self, store: WritingStore, report: UploadReport, on_loaded: OnLoaded):
        self._store = store
        self._report = report
        self._on_loaded = on_loaded
        self._parked_rows = ParkedRows()
        self._refused: list[RowResult] = []

    async def add(self, batch: Batch) -> None:
        self._refused += batch.refused
        self._parked_rows.add(batch.staged)

    async def finish(self) -> None:
        """Load everything, unless a row was refused. A row that the load refuses undoes it."""
        if self._refused:
            await _record(self._report, self._refused, ())
            return
        async with self._store.writing(timeout_s=WHOLE_TIMEOUT_S) as tx:
            skipped = await _load(tx, self._parked_rows.batches(), WHOLE_TIMEOUT_S)
            if any(isinstance(known, ListedPerson) or not known.is_same for known in skipped.values()):
                for batch in self._parked_rows.batches():
                    problems = [each for each in _results(batch, skipped) if each.is_problem]
                    await _record(self._report, (), problems)
                raise Undone
        first: list[UUID] = []
        for batch in self._parked_rows.batches():
            await _record(self._report, (), _results(batch, skipped))
            first += [lead.id for lead in batch if lead.row_no not in skipped][: SCHEDULED_MAX - len(first)]
        if first:
            await self._on_loaded(first)

    async def close(self) -> None:
        self._parked_rows.close()


class ParkedRows:
    """Batches in a file."""

    def __init__(self) -> None:
        self._file = TemporaryFile()  # noqa: SIM115 (closed with this)
        self._sizes: list[int] = []
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(list[StagedLead]).decode

    def add(self, staged: list[StagedLead]) -> None:
        self._sizes.append(self._file.write(self._encode(staged)))

    def batches(self) -> Iterator[list[StagedLead]]:
        self._file.seek(0)
        for size in self._sizes:
            yield self._decode(self._file.read(size))

    def close(self) -> None:
        self._file.close()


class Undone(Exception):
    """A row was refused when all were being loaded, so none was. The report names it."""


async def _load(tx: Connection, batches: Iterable[list[StagedLead]], timeout_s: float) -> SkippedRows:
    await leads.stage(tx)
    staged = 0
    for batch in batches:
        await leads.copy(tx, _records(batch), timeout_s=timeout_s)
        staged += len(batch)
    return await leads.load(tx, staged, timeout_s=timeout_s)


async def _records(staged: list[StagedLead]) -> AsyncIterator[tuple[Any, ...]]:
    turns = Turns()
    for lead in staged:
        await turns.next()
        yield msgspec.structs.astuple(lead)


def _results(staged: Iterable[StagedLead], skipped: SkippedRows) -> Iterator[RowResult]:
    for lead in staged:
        match skipped.get(lead.row_no):
            case None:
                yield RowResult(lead.row_no, "created", lead.request_id, lead.id)
            case KnownLead(lead_id=lead_id, is_same=True):
                yield RowResult(lead.row_no, "existing", lead.request_id, lead_id)
            case KnownLead():
                yield RowResult(lead.row_no, "conflict", lead.request_id, code="request_id_reused")
            case ListedPerson():
                yield RowResult(lead.row_no, "refused", lead.request_id, code="do_not_call")


async def _record(report: UploadReport, refused: Iterable[RowResult], results: Iterable[RowResult]) -> None:
    """In the order of their rows."""
    turns, by_row = Turns(), attrgetter("row")
    for result in merge(sorted(refused, key=by_row), results, key=by_row):
        await turns.next()
        report.add(result)
