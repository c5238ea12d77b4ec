"""Rows of an upload, read as its bytes arrive: a JSON array, JSON lines, or CSV. Pure.

An unreadable row is a row with an error, and those after it are read all the same. That is not possible in a JSON array
with broken syntax: where its next row begins is unknown, so the upload ends there.
"""

import codecs
import csv
import io
import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec

# A payload of 64 KiB, every character of it written as \uXXXX.
ROW_BYTES_MAX = 256 * 1024
COLUMNS_MAX = 200

_TOO_LONG = f"The row is longer than {ROW_BYTES_MAX} bytes."
_NOT_UTF8 = "The row is not UTF-8."


class UploadRow(NamedTuple):
    """`no` counts from 1. Either a value or the error."""

    no: int
    value: Any
    error: str | None = None


class Rows(Protocol):
    def read(self, chunk: bytes, *, is_end: bool = False) -> Iterator[UploadRow]:
        """The rows that are complete with this chunk, or with the end of the upload."""
        ...


# From a column to its field; None: the column is left out.
Rename = Callable[[str], str | None]


class BrokenUpload(Exception):
    """Nothing more can be read."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code
        self.message = message


class LineSplitter:
    """Splits bytes into lines. A line that is too long is None: it is dropped until its end."""

    def __init__(self) -> None:
        self._tail = b""
        self._is_skipping = False

    def read(self, chunk: bytes, *, is_end: bool) -> Iterator[bytes | None]:
        *whole, self._tail = (self._tail + chunk).split(b"\n")
        for line in whole:
            yield self._checked(line)
            self._is_skipping = False
        if is_end and (self._tail or self._is_skipping):
            yield self._checked(self._tail)
        elif len(self._tail) > ROW_BYTES_MAX:
            self._tail, self._is_skipping = b"", True

    def _checked(self, line: bytes) -> bytes | None:
        return None if self._is_skipping or len(line) > ROW_BYTES_MAX else line


class JsonLines:
    """One object per line; empty lines do not count."""

    def __init__(self) -> None:
        self._lines = LineSplitter()
        self._no = 0

    def read(self, chunk: bytes, *, is_end: bool = False) -> Iterator[UploadRow]:
        for line in self._lines.read(chunk, is_end=is_end):
            if line is None or line.strip():
                self._no += 1
                yield UploadRow(self._no, None, _TOO_LONG) if line is None else self._row(line)

    def _row(self, line: bytes) -> UploadRow:
        try:
            return UploadRow(self._no, msgspec.json.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return UploadRow(self._no, None, f"The line is not JSON: {error}.")


_SPACE = re.compile(r"[ \t\r\n]*")


class JsonArray:
    """The elements of one array. Only the element that is being read is held."""

    def __init__(self) -> None:
        self._decode_text = codecs.getincrementaldecoder("utf-8-sig")().decode
        self._scan = json.JSONDecoder().raw_decode
        self._text = ""
        self._at = 0
        self._no = 0
        self._awaits = "["

    def read(self, chunk: bytes, *, is_end: bool = False) -> Iterator[UploadRow]:
        try:
            self._text = self._text[self._at :] + self._decode_text(chunk, is_end)
        except UnicodeDecodeError:
            raise BrokenUpload(
                "bad_json", f"The body is not UTF-8, in row {self._no + 1} or after."
            ) from None
        self._at = 0
        while self._skip_space() < len(self._text):
            if self._awaits == "value":
                row = self._element(is_end)
                if row is None:
                    return
                yield row
            else:
                self._punctuation(self._text[self._at])
        if is_end and self._awaits != "nothing":
            raise BrokenUpload("bad_json", f"The JSON array ends within row {self._no + 1}.")

    def _skip_space(self) -> int:
        match = _SPACE.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return self._at

    def _punctuation(self, mark: str) -> None:
        match self._awaits, mark:
            case ("[", "["):
                self._awaits = "first"
            case ("first", "]") | (",", "]"):
                self._awaits = "nothing"
            case ("first", _):
                self._awaits = "value"
                return
            case (",", ","):
                self._awaits = "value"
            case ("[", _):
                raise BrokenUpload("bad_json", "The body is not a JSON array.")
            case _:
                raise BrokenUpload("bad_json", f"The JSON array is broken after row {self._no}.")
        self._at += 1

    def _element(self, is_end: bool) -> UploadRow | None:
        """The next element, or None if it is not complete yet."""
        try:
            value, end = self._scan(self._text, self._at)
        except (ValueError, RecursionError):
            if is_end or len(self._text) - self._at > ROW_BYTES_MAX:
                raise BrokenUpload("bad_json", f"Row {self._no + 1} of the JSON array is broken.") from None
            return None
        if end == len(self._text) and not is_end and self._text[end - 1] not in "}]":
            return None  # a number may continue
        self._at, self._awaits = end, ","
        self._no += 1
        return UploadRow(self._no, value)


@dataclass(slots=True)
class _Open:
    """Lines since a quote was opened."""

    lines: list[bytes] = field(default_factory=list)
    quotes: int = 0
    size: int = 0

    def add(self, line: bytes) -> None:
        self.lines.append(line)
        self.quotes += line.count(b'"')
        self.size += len(line) + 1


class CsvLines:
    """CSV whose first line names the columns: fields of a lead, and `payload.<name>` for parts of its payload.

    Each physical line is read by itself, as long as no quote is open. If one is opened and never closed, that line is
    broken and reading continues with the next: a lost quote must not swallow the remaining file.
    """

    def __init__(self, fields: Sequence[str], numbers: frozenset[str], rename: Rename | None = None):
        """`rename` gives the field of a column, or None to leave the column out."""
        self._lines = LineSplitter()
        self._fields = frozenset(fields)
        self._numbers = numbers
        self._rename = rename
        self._columns: tuple[str | None, ...] = ()
        self._delimiter = ","
        self._no = 0
        self._open = _Open()
        self._queue: deque[bytes | None] = deque()

    def read(self, chunk: bytes, *, is_end: bool = False) -> Iterator[UploadRow]:
        self._queue.extend(self._lines.read(chunk, is_end=is_end))
        yield from self._take()
        while is_end and self._open.lines:
            yield from self._give_up()
            yield from self._take()
        if is_end and not self._columns:
            raise BrokenUpload("bad_csv", "The first line must name the columns, and there is none.")

    def _take(self) -> Iterator[UploadRow]:
        while self._queue:
            line = self._queue.popleft()
            if line is None:
                yield self._broken(_TOO_LONG)
            elif not self._columns:
                self._read_header(line)
            elif self._open.lines or b'"' in line:
                yield from self._quoted(line)
            elif line.strip():
                yield self._plain(line)

    def _plain(self, line: bytes) -> UploadRow:
        try:
            return self._record(line.rstrip(b"\r").decode().split(self._delimiter))
        except UnicodeDecodeError:
            return self._broken(_NOT_UTF8)

    def _quoted(self, line: bytes) -> Iterator[UploadRow]:
        self._open.add(line)
        if self._open.quotes % 2 == 0:
            records = self._parsed(self._open.lines)
            if records is None:
                yield from self._give_up()
            else:
                self._open = _Open()
                yield from map(self._record, records)
        elif self._open.size > ROW_BYTES_MAX:
            yield from self._give_up()

    def _give_up(self) -> Iterator[UploadRow]:
        """The first of the open lines is read alone, or is broken; the others are read again."""
        first, *others = self._open.lines
        self._open = _Open()
        self._queue.extendleft(reversed(others))
        records = self._parsed([first])
        if records is None:
            yield self._broken("The row is not CSV: a quote is missing or too many.")
        else:
            yield from map(self._record, records)

    def _parsed(self, lines: Sequence[bytes]) -> list[list[str]] | None:
        try:
            text = io.StringIO(b"\n".join(lines).decode(), newline="")
            return list(csv.reader(text, delimiter=self._delimiter, strict=True))
        except (csv.Error, UnicodeDecodeError):
            return None

    def _record(self, cells: Sequence[str]) -> UploadRow:
        if len(cells) != len(self._columns):
            return self._broken(f"The row has {len(cells)} cells, and the header names {len(self._columns)}.")
        self._no += 1
        try:
            return UploadRow(self._no, self._row_of(dict(zip(self._columns, cells, strict=True))))
        except msgspec.DecodeError as error:
            return UploadRow(self._no, None, f"The cell of payload is not JSON: {error}.")

    def _row_of(self, cells: Mapping[str | None, str]) -> dict[str, Any]:
        """An empty cell is a field that was left out."""
        value: dict[str, Any] = {}
        parts: dict[str, Any] = {}
        for name, cell in cells.items():
            if not cell or name is None:
                continue
            if name == "payload":
                value[name] = msgspec.json.decode(cell)
            elif name.startswith("payload."):
                parts[name.removeprefix("payload.")] = cell
            else:
                value[name] = int(cell) if name in self._numbers and _WHOLE.fullmatch(cell) else cell
        if parts and isinstance(value.get("payload", {}), dict):
            value["payload"] = parts | value.get("payload", {})
        return value

    def _broken(self, error: str) -> UploadRow:
        self._no += 1
        return UploadRow(self._no, None, error)

    def _read_header(self, line: bytes) -> None:
        try:
            text = line.removeprefix(codecs.BOM_UTF8).rstrip(b"\r").decode()
            self._delimiter = max(",;\t", key=text.count)
            [names] = csv.reader([text], delimiter=self._delimiter, strict=True)
        except (csv.Error, ValueError):
            raise BrokenUpload("bad_csv", "The first line must name the columns, in UTF-8.") from None
        columns = tuple(name.strip() for name in names)
        if len(set(columns)) < len(columns) or len(columns) > COLUMNS_MAX:
            raise _named_twice(columns)
        self._columns = self._fields_of(columns)

    def _fields_of(self, columns: tuple[str, ...]) -> tuple[str | None, ...]:
        if self._rename is not None:
            renamed = tuple(map(self._rename, columns))
            known_names = [name for name in renamed if name is not None]
            if len(set(known_names)) < len(known_names):
                raise _named_twice(known_names)
            return renamed
        unknown = [name for name in columns if name not in self._fields and not name.startswith("payload.")]
        if unknown:
            known = ", ".join(sorted(self._fields))
            raise BrokenUpload(
                "bad_csv", f"There is no column {unknown[0][:60]!r}. There are: {known}, payload.<name>."
            )
        return columns


def _named_twice(columns: Sequence[str]) -> BrokenUpload:
    if len(columns) > COLUMNS_MAX:
        return BrokenUpload("bad_csv", f"There are more than {COLUMNS_MAX} columns.")
    twice = next(name for name in columns if columns.count(name) > 1)
    return BrokenUpload("bad_csv", f"The column {twice[:60]!r} is there twice. Give each a name of its own.")


_WHOLE = re.compile(r"-?[0-9]{1,18}")
