from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.leads import ingest


def nested(levels: int) -> dict[str, Any]:
    payload: dict[str, Any] = {}
    for _ in range(levels - 1):
        payload = {"a": payload}
    return payload


@pytest.mark.parametrize(
    "payload",
    [{}, {"a": [1, 2.5, None, True, "ü", "😀", {"b": []}]}, {"n": 2**63 - 1}, nested(ingest.DEPTH_MAX)],
)
def test_a_payload_that_jsonb_can_hold_is_accepted(payload: dict[str, Any]) -> None:
    assert ingest.payload_problem(payload, 10_000) is None


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        ({"a": "\x00"}, "NUL"),
        ({"\x00": 1}, "NUL"),
        ({"a": ["\ud800"]}, "surrogate"),
        ({"a": float("nan")}, "NaN"),
        ({"a": float("inf")}, "NaN"),
        ({"a": 2**63}, "too large"),
        ({"a": {"b": object()}}, "JSON"),
        (nested(ingest.DEPTH_MAX + 2), "nested"),
        ({"a": "x" * 10_000}, "10008 bytes"),
    ],
)
def test_a_payload_that_postgres_cannot_store_is_refused_with_its_reason(
    payload: dict[str, Any], says: str
) -> None:
    problem = ingest.payload_problem(payload, 10_000)
    assert problem is not None
    assert says in problem.error


def test_the_order_of_keys_does_not_change_the_encoding() -> None:
    assert ingest.encode({"a": 1, "b": {"c": 2, "d": 3}}) == ingest.encode({"b": {"d": 3, "c": 2}, "a": 1})


TEXTS = st.text(st.characters(codec="utf-8") | st.sampled_from("\x00\ud800a"), max_size=3)


@given(st.dictionaries(TEXTS, TEXTS | st.integers(-(2**65), 2**65) | st.booleans() | st.floats(), max_size=4))
def test_a_payload_that_passes_the_short_cut_has_no_problem(payload: dict[str, Any]) -> None:
    if ingest._is_plain(payload):
        assert ingest._value_problem(payload, ingest.DEPTH_MAX) is None
