"""Rows of an upload that made no lead, by what is wrong with them: a wrong column is one line, not thousands."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

ROWS_NAMED = 5


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
