"""The result of each row of an upload. Stored on disk beyond a few thousand rows, and read back from there."""

from collections.abc import Iterator
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from typing import Literal
from uuid import UUID

import msgspec

from trunkline.leads.ingest import FieldProblem

MEMORY_BYTES_MAX = 1024 * 1024
PROBLEMS_MAX = 1000

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
