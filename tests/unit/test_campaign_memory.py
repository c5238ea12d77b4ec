"""A campaign's file is taken in with the memory of one batch, however long it is."""

import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from trunkline.campaigns.rows import FIELDS, NUMBERS, CampaignRows, Columns, Spool, same_person
from trunkline.leads import bulk
from trunkline.leads.bulk import Batch, Intake
from trunkline.leads.uploads import CsvLines
from trunkline.model import new_id
from trunkline.store import leads
from trunkline.store.campaigns import StoredCampaign
from trunkline.store.leads import Admission, AdmissionKey
from trunkline.store.tenants import Tenant

ROW_BYTES = 64
NOW = datetime(2026, 6, 1, tzinfo=UTC)


class Nowhere:
    """A store and a loader that keep nothing but the size of the largest batch."""

    def __init__(self) -> None:
        self.rows = 0
        self.largest = 0

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Any]:
        yield None

    async def add(self, batch: Batch) -> None:
        self.rows += len(batch.staged)
        self.largest = max(self.largest, len(batch.staged))


async def file(rows: int) -> AsyncIterator[bytes]:
    yield b"phone,name,plan\n"
    for first in range(0, rows, 500):
        lines = (
            f"+1415{n:07},Customer number {n},gold\n"
            for n in range(2_000_000 + first, 2_000_000 + first + 500)
        )
        yield "".join(lines).encode()


async def peak_of(rows: int) -> tuple[int, Nowhere]:
    """The most memory that was held while so many rows were taken in, in bytes."""
    campaign = StoredCampaign(
        new_id(), "m", "May", "DRAFT", "p", 50, 3, None, None, None, None, None, NOW, NOW, None, None, "r", None,
        b"", "p", 50, 3, False, None, NOW,
    )  # fmt: skip
    place = Nowhere()
    spool = Spool("utf-8", CsvLines(FIELDS, NUMBERS, Columns().name), rows)
    named = CampaignRows("text/csv", campaign, None, Columns())
    intake = Intake(
        named, place, Tenant("r", "m"), place, payload_bytes_max=1000, rows_max=rows, hash_of=same_person
    )
    tracemalloc.start()
    await spool.take(file(rows))
    async for block in spool.blocks():
        await intake.feed(block)
    await intake.end()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    spool.close()
    return peak, place


async def test_an_upload_of_three_times_the_rows_takes_no_more_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def admissions(
        _tx: Any, _tenant: Tenant, keys: Sequence[AdmissionKey]
    ) -> dict[AdmissionKey, Admission]:
        return {key: Admission("m", "r", None, "p", (None, None, None, None), NOW) for key in keys}

    monkeypatch.setattr(leads, "admissions", admissions)
    monkeypatch.setattr(bulk, "BATCH_ROWS", 500)
    few, _ = await peak_of(3_000)
    many, place = await peak_of(9_000)
    assert place.rows == 9_000
    assert place.largest < 3_000, "a batch, and the block that filled it"
    assert many - few < 6_000 * ROW_BYTES, "6,000 rows more were not kept: each would take a kilobyte"
