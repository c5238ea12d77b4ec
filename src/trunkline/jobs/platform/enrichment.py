"""`enrich_call`: an enricher fetches the carrier's recording and transcript of a call and processes them. Once per
item.

The item's row is the guard: a run that finds it no longer ENRICHING does nothing. The result and the end of the job are
one transaction, so a run that lost its lease writes neither.
"""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urljoin
from uuid import UUID

import aiohttp
import msgspec

from trunkline.http.outgoing import FAILURES, Outgoing, was_refused
from trunkline.jobs.outbox import Outbox
from trunkline.jobs.outcomes import Cancel, Done, Failed, Outcome, Policy
from trunkline.jobs.platform.files import FileStore, FileTooLarge
from trunkline.jobs.registry import JobType
from trunkline.jobs.run import Run
from trunkline.store import enrichments
from trunkline.store.database import Connection, Database
from trunkline.store.enrichments import Enriched, Item, NewItem
from trunkline.store.jobs import Inserted
from trunkline.store.tenants import Tenant

RECORDING_BYTES_MAX = 500 * 1024 * 1024
TRANSCRIPT_BYTES_MAX = 5 * 1024 * 1024
FETCH_TIMEOUT_S = 300.0
REDIRECTS = frozenset({301, 302, 303, 307, 308})
REDIRECTS_MAX = 3
# URLs that the built-in enricher fetches. Another reference (s3://…) needs an enricher of the application.
FETCHED = ("https://", "http://")


class EnrichCall(msgspec.Struct):
    item_id: str


# A carrier may take 15 minutes to have a recording ready, and may be away for longer.
ENRICH_CALL: JobType[EnrichCall] = JobType(
    "enrich_call",
    EnrichCall,
    Policy(backoff_s=(0.0, 30.0, 300.0, 900.0, 3600.0, 4 * 3600.0), jitter=0.1, timeout_s=900.0),
)


@dataclass(frozen=True, slots=True)
class CallSource:
    """References to a call's recording and transcript, from the carrier or the agent: URLs or other data."""

    recording_url: str | None = None
    transcript_url: str | None = None
    data: dict[str, Any] | None = None
    # The carrier account that opens the recording, if the carrier reported it.
    carrier: str | None = None
    account: str | None = None


# The Authorization header for a URL of this source's carrier; None if there is none.
Authorize = Callable[[CallSource, str], str | None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request to enrich one item: a call, or one of its recordings."""

    item_id: str
    source: CallSource
    tenant: Tenant
    attempt_id: UUID | None = None


class Enricher(Protocol):
    """Enriches a call. It may run twice for one item; only one result is stored."""

    async def enrich(self, item: Item) -> Enriched | Failed: ...


class EnrichmentService:
    """Requests enrichment when calls end. It does not exist where enrichment is off."""

    def __init__(self, outbox: Outbox):
        self._outbox = outbox

    async def enqueue(self, tx: Connection, wanted: Iterable[Wanted]) -> list[Inserted]:
        """Enqueue the enrichment of calls, in the transaction that recorded them. A second request for an item does
        nothing."""
        by_id = {each.item_id: each for each in wanted}
        if not by_id:
            return []
        new = await enrichments.insert(tx, [_item(each) for each in by_id.values()])
        return await self._outbox.enqueue_many(
            tx,
            [
                ENRICH_CALL.new(EnrichCall(item_id), unique_key=item_id, tenant=by_id[item_id].tenant)
                for item_id in sorted(new)
            ],
        )

    def wake(self, enqueued: list[Inserted]) -> None:
        """After the commit."""
        self._outbox.wake(*enqueued)


def _item(wanted: Wanted) -> NewItem:
    source = msgspec.json.encode(wanted.source).decode()
    return NewItem(wanted.item_id, wanted.tenant, source, wanted.attempt_id)


class CallEnrichment:
    """The handler."""

    def __init__(self, database: Database, enricher: Enricher):
        self._database = database
        self._enricher = enricher

    async def run(self, call: EnrichCall, run: Run) -> Outcome:
        async with self._database.connection() as conn:
            item = await enrichments.get(conn, call.item_id)
        if item is None:
            return Cancel("The item is gone")
        if item.status != "ENRICHING":
            return Done({"skipped": item.status})
        enriched = await self._enricher.enrich(item)
        if isinstance(enriched, Failed):
            return enriched
        return await self._store(item, enriched, run)

    async def _store(self, item: Item, enriched: Enriched, run: Run) -> Outcome:
        async with self._database.transaction() as tx:
            if not await enrichments.complete(tx, item.item_id, enriched):
                return Done({"skipped": "finished by another run"})
            result = {"item_id": item.item_id, "recording": enriched.recording_ref is not None}
            await run.finish(tx, result)
        return Done(result)


class FetchingEnricher:
    """Stores the recording as a file and the transcript as text."""

    def __init__(self, outgoing: Outgoing, files: FileStore, authorize: Authorize | None = None):
        self._outgoing = outgoing
        self._files = files
        self._authorize = authorize

    async def enrich(self, item: Item) -> Enriched | Failed:
        source = msgspec.json.decode(item.source, type=CallSource)
        try:
            recording = await self._recording(item.item_id, source)
            transcript = await self._transcript(source.transcript_url)
        except FileTooLarge as error:
            return Failed("too_large", str(error), final=True)
        except _Refused as error:
            return Failed(f"http_{error.status}", f"{error.what} cannot be fetched")
        except FAILURES as error:
            code = "address_refused" if was_refused(error) else "not_reached"
            return Failed(code, f"{type(error).__name__}: {error}", final=was_refused(error))
        data = None if source.data is None else msgspec.json.encode(source.data).decode()
        return Enriched(recording, transcript, data)

    async def _recording(self, item_id: str, source: CallSource) -> str | None:
        url = source.recording_url
        if url is None or not url.startswith(FETCHED):
            return None
        name = f"recording-{item_id}"
        async with (
            self._followed(source, url) as answer,
            self._files.draft(name, bytes_max=RECORDING_BYTES_MAX) as draft,
        ):
            _check(answer.status, "The recording")
            async for chunk in answer.content.iter_chunked(256 * 1024):
                await draft.write(chunk)
        return name

    @asynccontextmanager
    async def _followed(self, source: CallSource, url: str) -> AsyncIterator[aiohttp.ClientResponse]:
        """Follow the carrier's redirects to the file. Every address on the way is checked like the first, and gets
        credentials only if it is the carrier's own."""
        status = 0
        for _ in range(REDIRECTS_MAX + 1):
            proof = self._authorize(source, url) if self._authorize else None
            headers = {"Authorization": proof} if proof else None
            async with self._outgoing.request(
                "GET", url, headers=headers, total_timeout_s=FETCH_TIMEOUT_S
            ) as answer:
                status, target = answer.status, answer.headers.get("Location")
                if status not in REDIRECTS or target is None:
                    yield answer
                    return
            url = urljoin(url, target)
        raise _Refused(status, "The recording")

    async def _transcript(self, url: str | None) -> str | None:
        if url is None or not url.startswith(FETCHED):
            return None
        async with self._outgoing.request("GET", url) as answer:
            _check(answer.status, "The transcript")
            text = await answer.content.read(TRANSCRIPT_BYTES_MAX + 1)
            if len(text) > TRANSCRIPT_BYTES_MAX:
                raise FileTooLarge(f"more than {TRANSCRIPT_BYTES_MAX} bytes")
            return text.decode("utf-8", "replace").replace("\x00", "")


class _Refused(Exception):
    def __init__(self, status: int, what: str):
        super().__init__(what)
        self.status = status
        self.what = what


def _check(status: int, what: str) -> None:
    if status != 200:
        raise _Refused(status, what)
