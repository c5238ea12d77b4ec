import csv
import io
import json
from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.leads.uploads import (
    ROW_BYTES_MAX,
    BrokenUpload,
    CsvLines,
    JsonArray,
    JsonLines,
    Rows,
    UploadRow,
)

FIELDS = ("request_id", "phone", "priority", "payload")
NUMBERS = frozenset({"priority"})

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.lists(st.dictionaries(st.text(max_size=5), JSON_VALUES, max_size=4), max_size=8)
CUTS = st.lists(st.integers(0, 400), max_size=6)
# A carriage return alone ends no line of a file, and inside quotes it is kept.
CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00\r"), max_size=12)


def csv_lines() -> CsvLines:
    return CsvLines(FIELDS, NUMBERS)


def read(reader: Rows, body: bytes, cuts: Sequence[int] = ()) -> list[UploadRow]:
    """As it comes in pieces: cut at each of these places."""
    places = sorted({min(cut, len(body)) for cut in (0, *cuts, len(body))})
    rows = [row for start, stop in pairwise(places) for row in reader.read(body[start:stop])]
    return rows + list(reader.read(b"", is_end=True))


def outcome(reader: Rows, body: bytes, cuts: Sequence[int]) -> list[UploadRow] | str:
    try:
        return read(reader, body, cuts)
    except BrokenUpload as error:
        return error.code


def values(rows: Sequence[UploadRow]) -> list[Any]:
    return [row.value for row in rows]


@given(OBJECTS, CUTS, st.sampled_from([None, 2]))
def test_a_json_array_is_read_whatever_its_pieces(
    objects: list[dict[str, Any]], cuts: list[int], indent: int | None
) -> None:
    rows = read(JsonArray(), json.dumps(objects, indent=indent).encode(), cuts)
    assert values(rows) == objects
    assert [row.no for row in rows] == list(range(1, len(objects) + 1))


@given(OBJECTS, CUTS, st.sampled_from(["\n", "\r\n", "\n\n"]))
def test_json_lines_are_read_whatever_their_pieces(
    objects: list[dict[str, Any]], cuts: list[int], end: str
) -> None:
    rows = read(JsonLines(), end.join(map(json.dumps, objects)).encode(), cuts)
    assert values(rows) == objects


@given(st.lists(st.tuples(CELLS, CELLS), max_size=6), CUTS, st.sampled_from([",", ";", "\t"]))
def test_csv_is_read_whatever_its_pieces_and_its_delimiter(
    cells: list[tuple[str, str]], cuts: list[int], delimiter: str
) -> None:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, quoting=csv.QUOTE_ALL)
    writer.writerows([("request_id", "payload.note"), *cells])
    rows = read(csv_lines(), text.getvalue().encode(), cuts)
    assert [
        (row.value.get("request_id", ""), row.value.get("payload", {}).get("note", "")) for row in rows
    ] == cells


@given(st.binary(max_size=300), st.sampled_from([JsonArray, JsonLines, csv_lines]), CUTS)
def test_any_bytes_are_rows_or_a_broken_upload(
    body: bytes, make: Callable[[], Rows], cuts: list[int]
) -> None:
    assert outcome(make(), body, cuts) == outcome(make(), body, [])


def test_a_broken_line_of_json_is_one_row() -> None:
    first, broken, last = read(JsonLines(), b'{"a": 1}\n{"a": \n{"a": 3}')
    assert (first.value, broken.value, last.value) == ({"a": 1}, None, {"a": 3})
    assert broken.error is not None
    assert broken.error.startswith("The line is not JSON")
    assert (broken.no, last.no) == (2, 3)


@pytest.mark.parametrize("make", [JsonLines, csv_lines])
def test_a_line_without_an_end_is_one_bad_row_and_not_buffered(make: Callable[[], Rows]) -> None:
    reader = make()
    rows = list(reader.read(b"request_id\n")) if make is csv_lines else []
    for _ in range(20):
        rows += reader.read(b"x" * ROW_BYTES_MAX)
    good = b"7" if make is csv_lines else b'{"a": 1}'
    rows += [*reader.read(b"x\n" + good + b"\n"), *reader.read(b"", is_end=True)]
    assert [row.error is None for row in rows] == [False, True]


@pytest.mark.parametrize(
    ("body", "rows_before"),
    [(b"", 0), (b"{}", 0), (b"[", 0), (b'[{"a": 1}', 1), (b'[{"a": 1} {"a": 2}]', 1), (b'[{"a": 1},]', 1),
     (b'[{"a": 1}, {"a": }]', 1), (b"[]]", 0), (b"[\xff]", 0), (b"[" * 100_000, 0), (b'[{"a": "x', 0)],
)  # fmt: skip
def test_a_broken_array_ends_the_upload_after_its_good_rows(body: bytes, rows_before: int) -> None:
    seen: list[UploadRow] = []
    reader = JsonArray()
    with pytest.raises(BrokenUpload) as caught:
        seen.extend(chain(reader.read(body), reader.read(b"", is_end=True)))
    assert (len(seen), caught.value.code) == (rows_before, "bad_json")


def test_an_array_with_a_row_without_an_end_is_a_broken_upload() -> None:
    reader = JsonArray()
    with pytest.raises(BrokenUpload, match="Row 1"):
        list(chain.from_iterable(reader.read(b'[{"a": "' + b"x" * ROW_BYTES_MAX) for _ in range(10)))


def test_a_number_is_not_cut_where_a_piece_ends() -> None:
    assert values(read(JsonArray(), b"[12, 34]", [2, 6])) == [12, 34]


def test_cells_become_fields() -> None:
    body = b'\xef\xbb\xbfrequest_id,phone,priority,payload,payload.name\r\nr1,+1415,7,"{""a"": 1}",Ada\r\nr2,,x,,\r\n'
    first, second = values(read(csv_lines(), body))
    assert first == {"request_id": "r1", "phone": "+1415", "priority": 7, "payload": {"name": "Ada", "a": 1}}
    assert second == {"request_id": "r2", "priority": "x"}


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"r2", "has 1 cells"),
        (b"r2,+1,7", "has 3 cells"),
        (b'r2,"+1', "not CSV"),
        (b'"r2"x,+1', "not CSV"),
        (b"r2,\xff", "not UTF-8"),
        (b'"r2",\xff', "not CSV"),
    ],
)
def test_a_broken_line_of_csv_is_one_row(line: bytes, error: str) -> None:
    body = b"request_id,phone\nr1,+1\n" + line + b'\nr3,"+3"\nr4,+4\n"r5","+\n5"\n'
    rows = read(csv_lines(), body)
    assert [row.error is None for row in rows] == [True, False, True, True, True]
    assert error in str(rows[1].error)
    assert [row.value["phone"] for row in rows if row.value] == ["+1", "+3", "+4", "+\n5"]


def test_a_double_quote_inside_a_csv_cell_is_text() -> None:
    rows = read(csv_lines(), b'request_id,payload.size\nr1,5" wide\nr2,6" wide\nr3,7" wide\n')
    assert [row.value["payload"]["size"] for row in rows] == ['5" wide', '6" wide', '7" wide']


def test_a_quote_that_is_never_closed_swallows_no_more_than_its_line() -> None:
    body = b'request_id,phone\nr0,"+0\n' + b"".join(b"r%d,+1\n" % n for n in range(1, 50_000))
    rows = read(csv_lines(), body, range(0, len(body), 65_536))
    assert [row.no for row in rows if row.error] == [1]
    assert len(rows) == 50_000


@pytest.mark.parametrize("header", [b"", b"request_id,fone\n", b"phone,phone\n", b"\xff\n", b'"phone\n'])
def test_a_header_that_cannot_be_read_ends_the_upload(header: bytes) -> None:
    with pytest.raises(BrokenUpload) as caught:
        read(csv_lines(), header + b"r1,+1\n" if header else b"")
    assert caught.value.code == "bad_csv"


def test_a_cell_of_payload_that_is_not_json_is_one_row() -> None:
    first, second = read(csv_lines(), b"request_id,payload\nr1,{oops\nr2,{}\n")
    assert "payload" in str(first.error)
    assert second.value == {"request_id": "r2", "payload": {}}
