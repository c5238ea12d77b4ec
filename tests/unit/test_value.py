"""Values are frozen, equal by their fields, and do not show what is private."""

from typing import Any
from uuid import UUID

import pytest
from rich.pretty import pretty_repr

from trunkline.telephony.callbacks import CallbackKeys, callback_url
from trunkline.telephony.carrier import CallOrder
from trunkline.value import Private, Value, replace


class Greeting(Value, frozen=True):
    text: str
    phone: Private[str]
    note: Private[str | None] = None


HELLO = Greeting("hello", "+14155550123", note="at home")


def test_the_repr_of_a_value_leaves_private_fields_out() -> None:
    assert repr(HELLO) == "Greeting(text='hello')"
    assert pretty_repr(HELLO) == "Greeting(text='hello')"


def test_values_are_equal_by_their_fields() -> None:
    assert Greeting("hello", "+14155550123", "at home") == HELLO
    assert {HELLO: 1}[Greeting("hello", "+14155550123", "at home")] == 1
    assert replace(HELLO, text="bye") == Greeting("bye", "+14155550123", "at home") != HELLO


def test_a_value_is_immutable() -> None:
    changed: Any = HELLO
    with pytest.raises(AttributeError):
        changed.text = "bye"


def test_the_repr_of_a_call_order_contains_no_number_and_no_secret() -> None:
    keys = CallbackKeys.from_secrets(["a secret"])
    url = callback_url("https://example.com", "twilio", "status", None, keys)
    order = CallOrder(
        attempt_id=UUID(int=1),
        to="+14155550123",
        from_="+14155550199",
        answer_url=url,
        status_url=url,
        ring_timeout_s=30,
        time_limit_s=3600,
        machine_url=url,
        recording_url=url,
    )
    assert "+1415" not in repr(order)
    assert "sig=" not in repr(order)
