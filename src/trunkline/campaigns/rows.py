"""A campaign's file: stored on disk until all of it has proven readable. From its rows, with columns of any name, to
leads of the campaign.

A person is in a campaign once. The lead's `request_id` is made from the campaign and the phone, so the key that makes
leads idempotent finds duplicates too, within a file and across files, and there is one budget of attempts per person.
"""

import codecs
import hashlib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import Any, Literal, TypeAlias

from trunkline.leads import phones
from trunkline.leads.bulk import Turns
from trunkline.leads.ingest import PAYLOAD_PHONE
from trunkline.leads.uploads import BrokenUpload, CsvLines, JsonArray, JsonLines, Rows, UploadRow
from trunkline.store.campaigns import StoredCampaign

# The fields of a row; all other columns are part of the payload.
FIELDS = ("phone", "external_id", "timezone", "scheduled_at", "priority", "max_attempts", "payload")
NUMBERS = frozenset({"priority", "max_attempts"})
MAPPED_MAX = 100
BLOCK_BYTES = 64 * 1024
ENCODINGS = ("utf-8", "utf-16", "latin-1", "windows-1252")

Others: TypeAlias = Literal["payload", "ignore", "refuse"]


@dataclass(frozen=True, slots=True)
class Columns:
    """The field of each column. `others` says what to do with columns that are neither mapped nor fields."""

    fields: Mapping[str, str] = field(default_factory=dict)
    others: Others = "payload"

    def name(self, column: str) -> str | None:
        """None: the column is left out."""
        mapped = self.fields.get(column)
        if mapped is not None:
            return mapped
        if column in FIELDS or column.startswith("payload."):
            return column
        if self.others == "refuse":
            known = ", ".join(FIELDS)
            raise BrokenUpload(
                "bad_csv", f"There is no column {column[:60]!r}. Map it, or name it one of: {known}."
            )
        return f"payload.{column}" if self.others == "payload" else None


def parse_mapping(pairs: list[str], others: Others) -> Columns | str:
    """`field:column` each. A text is the error."""
    mapping: dict[str, str] = {}
    for pair in pairs:
        name, colon, column = pair.partition(":")
        if not colon or not column or not (name in FIELDS or name.startswith("payload.")):
            return f"{pair[:80]!r} is not field:column, with a field like phone or payload.name."
        if column in mapping or name in mapping.values():
            return f"{pair[:80]!r} maps a column or a field for the second time."
        mapping[column] = name
    if len(mapping) > MAPPED_MAX:
        return f"At most {MAPPED_MAX} columns can be mapped."
    return Columns(mapping, others)


def reader(kind: str, columns: Columns) -> Rows:
    """The reader of a file, by its media type. It maps the header of a CSV."""
    match kind:
        case "text/csv":
            return CsvLines(FIELDS, NUMBERS, columns.name)
        case "application/json":
            return JsonArray()
        case _:
            return JsonLines()


def unmapped(kind: str, columns: Columns) -> Columns:
    """The columns that the reader has not mapped."""
    return Columns() if kind == "text/csv" else columns


def same_person(request_id: str) -> bytes:
    """Of two rows for one person the second is a duplicate, whatever its other fields are."""
    return hashlib.sha256(request_id.encode()).digest()


class CampaignRows:
    """Rows of a file, as requests for leads of the campaign."""

    def __init__(self, kind: str, campaign: StoredCampaign, region: str | None, columns: Columns):
        self._rows = reader(kind, columns)
        self._campaign = campaign
        self._region = region
        self._mapping = unmapped(kind, columns)

    def read(self, chunk: bytes, *, is_end: bool = False) -> Iterator[UploadRow]:
        return map(self._row, self._rows.read(chunk, is_end=is_end))

    def _row(self, row: UploadRow) -> UploadRow:
        if row.error is not None or not isinstance(row.value, dict):
            return row
        try:
            return UploadRow(row.no, self._request(row.no, self._named(row.value)))
        except BrokenUpload as problem:
            return UploadRow(row.no, None, problem.message)

    def _named(self, value: dict[str, Any]) -> dict[str, Any]:
        """The row by field names. Parts of the payload are merged."""
        named: dict[str, Any] = {}
        payload: dict[str, Any] = {}
        for column, cell in value.items():
            name = self._mapping.name(str(column))
            if name is None:
                continue
            if name.startswith("payload."):
                payload[name.removeprefix("payload.")] = cell
            else:
                named[name] = cell
        if payload and isinstance(named.get("payload", {}), dict):
            named["payload"] = named.get("payload", {}) | payload
        return named

    def _request(self, no: int, named: dict[str, Any]) -> dict[str, Any]:
        campaign = self._campaign
        if "external_id" in named and isinstance(named.get("payload", {}), dict):
            named["payload"] = named.get("payload", {}) | {"external_id": named.pop("external_id")}
        phone = named.get("phone")
        if phone is None and isinstance(named.get("payload"), dict):
            phone = named["payload"].get(PAYLOAD_PHONE)
        parsed = phones.to_e164(phone, self._region) if isinstance(phone, str) else None
        # `ingest` refuses a phone that cannot be called, under a name by which it is found in the file.
        written = str(phone if phone is not None else "")[: phones.TEXT_MAX].strip()
        name = parsed if isinstance(parsed, str) else written or f"row-{no}"
        defaults = {
            "priority": campaign.priority,
            "max_attempts": campaign.max_attempts,
            "reporting_webhook_url": campaign.reporting_webhook_url,
        }
        own = {
            "request_id": f"campaign/{campaign.id}/{name}",
            "merchant_id": campaign.merchant_id,
            "campaign_id": campaign.id,
            "pool": campaign.pool,
        }
        return defaults | named | own


class Spool:
    """The bytes of an upload, as UTF-8, on disk: no file is half loaded.

    Memory holds one block. The file is read twice: once as it arrives, for its encoding, its header and its syntax, and
    once for its leads. A row that is wrong in itself does not refuse the others; the load reports it.
    """

    def __init__(self, encoding: str, check: Rows, rows_max: int):
        self._file = TemporaryFile()  # noqa: SIM115 (closed with this)
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._encoding = encoding
        self._check = check
        self._rows_max = rows_max
        self._lines = 0
        self.rows = 0

    async def take(self, blocks: AsyncIterator[bytes]) -> None:
        """All of the file, or `BrokenUpload`."""
        turns, is_first = Turns(), True
        async for block in blocks:
            await turns.next()
            if is_first and block:
                is_first = False
                self._refuse_other_encodings(block)
            self._add(self._decoded(block))
        self._add(self._decoded(b"", final=True), is_end=True)

    async def blocks(self) -> AsyncIterator[bytes]:
        self._file.seek(0)
        while block := self._file.read(BLOCK_BYTES):
            yield block

    def close(self) -> None:
        self._file.close()

    def _add(self, piece: bytes, *, is_end: bool = False) -> None:
        self._file.write(piece)
        self._lines += piece.count(b"\n")
        self.rows += sum(1 for _ in self._check.read(piece, is_end=is_end))
        if self.rows > self._rows_max:
            raise BrokenUpload("too_many_rows", f"An upload has at most {self._rows_max} rows.")

    def _decoded(self, block: bytes, *, final: bool = False) -> bytes:
        try:
            return self._decoder.decode(block, final).encode()
        except UnicodeDecodeError as error:
            line = self._lines + block[: error.start].count(b"\n") + 1
            raise BrokenUpload(
                "bad_encoding",
                f"The file is not {self._encoding}: see line {line}. Save it as UTF-8, or say what it is with "
                f"`encoding`: {', '.join(ENCODINGS)}. Nothing was taken in.",
            ) from None

    def _refuse_other_encodings(self, block: bytes) -> None:
        if self._encoding == "utf-8" and block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise BrokenUpload(
                "bad_encoding",
                "The file is UTF-16. Save it as UTF-8, or say `encoding=utf-16`. Nothing was taken in.",
            )
