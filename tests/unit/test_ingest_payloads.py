from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.leads import payloads


def nested(levels: int) -> dict[str, Any]:
    payload: dict[str, Any] = {}
    for _ in range(levels - 1):
        payload = {"a": payload}
    return payload


@pytest.mark.parametrize(
    "payload",
    [{}, {"a": [1, 2.5, None, True, "ü", "😀", {"b": []}]}, {"n": 2**63 - 1}, nested(payloads.DEPTH_MAX)],
)
def test_a_payload_that_jsonb_can_hold_is_accepted(payload: dict[str, Any]) -> None:
    assert payloads.problem(payload, bytes_max=10_000) is None


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
        (nested(payloads.DEPTH_MAX + 2), "nested"),
        ({"a": "x" * 10_000}, "10008 bytes"),
    ],
)
def test_a_payload_that_postgres_cannot_store_is_refused_with_its_reason(
    payload: dict[str, Any], says: str
) -> None:
    reason = payloads.problem(payload, bytes_max=10_000)
    assert reason is not None
    assert says in reason


def test_the_order_of_keys_does_not_change_the_encoding() -> None:
    assert payloads.encode({"a": 1, "b": {"c": 2, "d": 3}}) == payloads.encode(
        {"b": {"d": 3, "c": 2}, "a": 1}
    )


TEXTS = st.text(st.characters(codec="utf-8") | st.sampled_from("\x00\ud800a"), max_size=3)


@given(st.dictionaries(TEXTS, TEXTS | st.integers(-(2**65), 2**65) | st.booleans() | st.floats(), max_size=4))
def test_a_payload_that_passes_the_short_cut_has_no_problem(payload: dict[str, Any]) -> None:
    if payloads._is_plain(payload):
        assert payloads._value_problem(payload, payloads.DEPTH_MAX) is None
