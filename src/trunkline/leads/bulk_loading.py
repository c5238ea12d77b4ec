"""Two ways to load an upload: piece by piece, where a bad row affects no other, or all of it or nothing."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from heapq import merge
from operator import attrgetter
from tempfile import TemporaryFile
from typing import Any, Protocol
from uuid import UUID

import msgspec

from trunkline.leads.bulk import Batch, Turns
from trunkline.leads.upload_report import RowResult, UploadReport
from trunkline.store import lead_uploads
from trunkline.store.database import Connection
from trunkline.store.lead_uploads import KnownLead, ListedPerson, SkippedRows, StagedLead

BATCH_TIMEOUT_S = 30.0
# 100,000 leads in one statement take some seconds.
WHOLE_TIMEOUT_S = 120.0
# This many of the first leads are scheduled at once; the loader schedules the others.
SCHEDULED_MAX = 100

OnLoaded = Callable[[Sequence[UUID]], Awaitable[object]]


class WritingStore(Protocol):
    def writing(self, *, timeout_s: float | None = None) -> AbstractAsyncContextManager[Connection]: ...


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
            if any(_is_problem(known) for known in skipped.values()):
                await self._report_problems(skipped)
                raise Undone
        first: list[UUID] = []
        for batch in self._parked_rows.batches():
            await _record(self._report, (), _results(batch, skipped))
            first += [lead.id for lead in batch if lead.row_no not in skipped][: SCHEDULED_MAX - len(first)]
        if first:
            await self._on_loaded(first)

    async def _report_problems(self, skipped: SkippedRows) -> None:
        for batch in self._parked_rows.batches():
            problems = [each for each in _results(batch, skipped) if each.is_problem]
            await _record(self._report, (), problems)

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
    await lead_uploads.stage(tx)
    staged = 0
    for batch in batches:
        await lead_uploads.copy(tx, _records(batch), timeout_s=timeout_s)
        staged += len(batch)
    return await lead_uploads.load(tx, staged, timeout_s=timeout_s)


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


def _is_problem(skipped: KnownLead | ListedPerson) -> bool:
    return isinstance(skipped, ListedPerson) or not skipped.is_same


async def _record(report: UploadReport, refused: Iterable[RowResult], results: Iterable[RowResult]) -> None:
    """In the order of their rows."""
    turns, by_row = Turns(), attrgetter("row")
    for result in merge(sorted(refused, key=by_row), results, key=by_row):
        await turns.next()
        report.add(result)
