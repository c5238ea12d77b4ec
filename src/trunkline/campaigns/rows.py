"""Rows of a campaign's upload: from a row, with columns of any name, to a lead of the campaign. Pure.

A person is in a campaign once. The lead's `request_id` is made from the campaign and the phone, so the key that makes
leads idempotent finds duplicates too, within a file and across files, and there is one budget of attempts per person.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from trunkline.leads import phones
from trunkline.leads.ingest import PAYLOAD_PHONE
from trunkline.leads.uploads import BrokenUpload, CsvLines, JsonArray, JsonLines, Rows, UploadRow
from trunkline.store.campaigns import StoredCampaign

# The fields of a row; all other columns are part of the payload.
FIELDS = ("phone", "external_id", "timezone", "scheduled_at", "priority", "max_attempts", "payload")
NUMBERS = frozenset({"priority", "max_attempts"})
MAPPED_MAX = 100

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
