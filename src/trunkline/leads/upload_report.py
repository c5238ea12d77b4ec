"""The result of each row of an upload, stored on disk beyond a few thousand rows; and for people the rows that made no
lead, by what is wrong with them: a wrong column is one line, not thousands."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from typing import Any, Literal
from uuid import UUID

import msgspec

from trunkline.leads.ingest import FieldProblem

MEMORY_BYTES_MAX = 1024 * 1024
PROBLEMS_MAX = 1000
ROWS_NAMED = 5

Result = Literal["created", "existing", "conflict", "refused"]

_encode = msgspec.json.Encoder().encode


class RowResult(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """`existing`: sent before, with the same content. `conflict`: sent before with other content."""

    row: int
    result: Result
    request_id: str | None = None
    id: UUID | None = None
    code: str | None = None
    error: str | None = None
    fields: tuple[FieldProblem, ...] = ()

    @property
    def is_problem(self) -> bool:
        return self.result in ("conflict", "refused")


@dataclass(slots=True)
class UploadCounts:
    rows: int = 0
    created: int = 0
    existing: int = 0
    conflict: int = 0
    refused: int = 0

    def add(self, result: Result) -> None:
        self.rows += 1
        setattr(self, result, getattr(self, result) + 1)


class UploadReport:
    """Results in the order of their rows, as lines of JSON."""

    def __init__(self, *, problems_only: bool = False) -> None:
        self.tally = UploadCounts()
        # The first of them, for a response that is an error.
        self.problems: list[RowResult] = []
        self._problems_only = problems_only
        self._lines = SpooledTemporaryFile(max_size=MEMORY_BYTES_MAX)  # noqa: SIM115 (closed with the report)

    def add(self, result: RowResult) -> None:
        self.tally.add(result.result)
        if result.is_problem and len(self.problems) < PROBLEMS_MAX:
            self.problems.append(result)
        if result.is_problem or not self._problems_only:
            self._lines.write(_encode(result) + b"\n")

    def lines(self) -> Iterator[bytes]:
        """From the first on, each with its line end."""
        self._lines.seek(0)
        yield from self._lines

    def close(self) -> None:
        self._lines.close()


@dataclass(frozen=True, slots=True)
class UploadProblem:
    """`rows` and `request_ids` name the first of them."""

    result: str
    code: str
    why: str
    count: int
    rows: str
    request_ids: str


def by_reason(results: Iterable[Mapping[str, Any]]) -> list[UploadProblem]:
    """In the order in which the reasons first occur. `results` are those of the API's response."""
    grouped: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for row in results:
        grouped.setdefault((row["result"], row.get("code") or "", _why(row)), []).append(row)
    return [
        UploadProblem(
            result,
            code,
            why,
            len(rows),
            _named([str(row["row"]) for row in rows]),
            _named([row["request_id"] for row in rows if row.get("request_id")]),
        )
        for (result, code, why), rows in grouped.items()
    ]


def _why(row: Mapping[str, Any]) -> str:
    fields = (f"{each['field']}: {each['error']}" for each in row.get("fields") or ())
    return "; ".join([row["error"]] if row.get("error") and not row.get("fields") else fields)


def _named(names: list[str]) -> str:
    more = len(names) - ROWS_NAMED
    return ", ".join(names[:ROWS_NAMED]) + (f" and {more} more" if more > 0 else "")
