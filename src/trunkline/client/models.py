"""The API's responses as values. Fields that a newer server adds are ignored."""

from dataclasses import dataclass

from trunkline.client.errors import FieldError


@dataclass(frozen=True, slots=True)
class RowProblem:
    """A row of an upload that created no lead."""

    row: int
    result: str
    request_id: str | None = None
    code: str | None = None
    error: str | None = None
    fields: tuple[FieldError, ...] = ()


@dataclass(frozen=True, slots=True)
class UploadReport:
    """The results of the rows of an upload. `existing` were sent before; `problems` are conflicts and refusals."""

    rows: int
    created: int
    existing: int
    conflict: int
    refused: int
    problems: tuple[RowProblem, ...]


@dataclass(frozen=True, slots=True)
class Aborted:
    """How many leads have ended, and how many are being called and end with this call."""

    aborted: int
    cancel_requested: int


@dataclass(frozen=True, slots=True)
class Reopened:
    """How many finished leads wait to be called again, and how many may not be, by the reason."""

    reopened: int
    refused: dict[str, int]
