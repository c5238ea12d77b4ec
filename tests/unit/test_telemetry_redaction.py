"""Phone numbers and secrets are found in every notation; ids, times and sizes are left alone."""

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from urllib.parse import quote, quote_plus
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from trunkline.telemetry.redaction import Pseudonyms, mask_text, mask_value, pseudonyms

# A loaded machine is slow; that is not what is tested.
unhurried = hypothesis_settings(deadline=None)

E164 = st.from_regex(r"\+[1-9][0-9]{6,14}", fullmatch=True)

NUMBERS = {
    "+14155550123": "4155550123",
    "+1 415 555 0123": "4155550123",
    "+1 (415) 555-0123": "4155550123",
    "+1.415.555.0123": "4155550123",
    "+44 (0)20 7946 0958": "2079460958",
    "+91 98765 43210": "9876543210",
    "+919876543210": "9876543210",
    "%2B919876543210": "9876543210",
    "%2b919876543210": "9876543210",
    "%252B919876543210": "9876543210",
    "%2B1%20415%20555%200123": "4155550123",
    "%2B1+415+555+0123": "4155550123",
    "%2B1+%28415%29+555-0123": "4155550123",
    "%2B1.415.555.0123": "4155550123",
    r"\u002B14155550123": "4155550123",
    "&#43;14155550123": "4155550123",
    "＋14155550123": "4155550123",
    "(415) 555-0123": "4155550123",
    "415-555-0123": "4155550123",
    "415.555.0123": "4155550123",
    "1-415-555-0123": "4155550123",
    "%28415%29%20555-0123": "4155550123",
    "98765 43210": "9876543210",
    "09876-543210": "9876543210",
    "020 7946 0958": "2079460958",
    "0171/1234567": "01711234567",
    "01 23 45 67 89": "0123456789",
    "to=919876543210": "9876543210",
    "From=09876543210": "9876543210",
    "to=415+555+0123": "4155550123",
    "CallFrom=09876543210": "9876543210",
    "customerMobileNumber=9876543210": "9876543210",
    '{"phone": 4155550123}': "4155550123",
    "{'to': '919876543210'}": "9876543210",
    r"{\"to\": \"919876543210\"}": "9876543210",
    "Key (to_number)=(4155550123) already exists": "4155550123",
    "tel:4155550123": "4155550123",
    "sip:14155550123@carrier.example": "4155550123",
    "the number 919876543210 is unverified": "9876543210",
    "phone 4155550123": "4155550123",
}

INNOCENT = [
    "0193a2b4-1234-7000-8000-012345678901",
    "12345678-1234-1234-1234-123456789012",
    "/leads/01234567-0123-4567-8901-234567890123?x=1",
    "CA12345678901234567890123456789012",
    "2025-11-15T08:07:00.123456+00:00",
    "2025-11-15 08:07:00.123456+00 2025-11-16",
    "2025-11-15T08:07:00+0530",
    "from=2025-11-15 to=2025-11-16",
    "from=1763194020 to=1763194080",
    "from=1763194020123 to=1763194020999",
    "at 1763194020123456789 ns",
    "from=10.200.112.134:54321",
    '127.0.0.1:54321 - "GET /health HTTP/1.1" 200',
    "192.168.100.200",
    "took 12345678 bytes in 1234.5678901 ms",
    "bytes 0-1048575/2097152",
    "port 54321, pid 1234567",
    "42-1-a3f8c2b1",
    "to_state=12345678",
    "goto=12345678",
    "number_id=1234567890",
    "v1.2.3+45",
    "1e+10",
    "call.placed",
]


@pytest.mark.parametrize("text", NUMBERS)
@pytest.mark.parametrize("frame", ["{}", "call {} now", '"{}"', "<{}>", "\n{}\n", "a=b&n={}&c=d", "x,{};y"])
def test_a_number_becomes_its_pseudonym(text: str, frame: str) -> None:
    masked = mask_text(frame.format(text))
    assert "phone:" in masked
    assert NUMBERS[text] not in "".join(filter(str.isdigit, masked))


@pytest.mark.parametrize("text", INNOCENT)
def test_what_is_no_number_is_left_alone(text: str) -> None:
    assert mask_text(text) == text
    assert mask_text(f"lead {text} done") == f"lead {text} done"


def test_numbers_side_by_side_are_told_apart() -> None:
    one, two = pseudonyms.of("14155550123"), pseudonyms.of("14155550199")
    assert mask_text("+14155550123 +14155550199") == f"{one} {two}"
    assert mask_text("+1 415 555 0123 +1 415 555 0199") == f"{one} {two}"
    assert mask_text("from=%2B14155550123&to=%2B14155550199") == f"from={one}&to={two}"


def test_what_stands_beside_a_number_stays() -> None:
    assert mask_text("dialled +14155550123 2 times in 42 ms").endswith("*23 2 times in 42 ms")


def test_one_number_has_one_pseudonym_in_every_notation() -> None:
    notations = ["+14155550123", "+1 (415) 555-0123", "%2B14155550123", "(415) 555-0123", "tel:4155550123"]
    assert len({mask_text(text).removeprefix("tel:") for text in notations}) == 1


def test_pseudonyms_depend_on_the_key_and_only_on_it() -> None:
    first, second, other = Pseudonyms(), Pseudonyms(), Pseudonyms()
    first.use_key(b"one")
    second.use_key(b"one")
    assert first.of("+14155550123") == second.of("+14155550123") != other.of("+14155550123")
    assert first.of("+14155550123") != first.of("+14155550124")


@unhurried
@given(E164)
def test_a_pseudonym_shows_two_digits_and_is_not_masked_again(number: str) -> None:
    pseudonym = mask_text(number)
    assert [c for c in pseudonym if c.isdigit()] == list(number[-2:])
    assert mask_text(f"to={pseudonym}, phone: {pseudonym}") == f"to={pseudonym}, phone: {pseudonym}"


# Text that is made to look like parts of a number is harder than any text.
SURROUNDINGS = st.text(max_size=40) | st.text("0123456789+-. ()/%2Babcdef:=&\"'\n_T", max_size=20)


@unhurried
@given(SURROUNDINGS, E164, SURROUNDINGS)
@example("1/ ", "+828820018263", "')")
@example("page 42 of 99 ", "+14155550123", "-")
def test_no_number_survives_in_any_surroundings(before: str, number: str, after: str) -> None:
    for written in (number, quote(number), quote_plus(number), quote(quote(number)), f"tel:{number}"):
        assert number[1:] not in mask_text(before + written + after)


@unhurried
@given(st.uuids(), st.integers(10**9, 4 * 10**9), st.integers(0, 2**31), st.floats(allow_nan=False))
def test_ids_times_sizes_and_durations_survive(uid: UUID, at_s: int, size: int, duration: float) -> None:
    stamp = datetime.fromtimestamp(at_s, UTC).isoformat()
    text = f"lead {uid} at {stamp} took {duration!r} s for {size} bytes, {uid.hex}"
    assert mask_text(text) == text


@unhurried
@given(st.integers(1_500_000_000, 1_999_999_999), st.integers(0, 999))
def test_unix_times_survive_even_after_to_and_from(seconds: int, ms: int) -> None:
    text = f"from={seconds} to={seconds}{ms:03}"
    assert mask_text(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://user:planted@db/calls",
        "postgresql://user:planted@word@db/calls",
        "redis://:planted@cache:6379/0",
        "https://x.example/cb?sig=planted&a=1",
        "https://x.example/cb?a=1&token=planted",
        "GET /cb?attempt=1&signature=planted HTTP/1.1",
        "Authorization: Bearer planted",
        "authorization=Basic planted",
        "{'Authorization': 'Basic planted'}",
        "curl -H 'Authorization: planted'",
        "Bearer planted0.planted.planted",
        '{"password": "planted"}',
        r"{\"api_key\": \"planted\"}",
        "auth_token=planted",
        "X-Twilio-Signature: planted",
        "next=%2Fcb%3Ftoken%3Dplanted",
    ],
)
def test_secrets_are_hidden_in_text(text: str) -> None:
    masked = mask_text(text)
    assert "planted" not in masked
    assert "***" in masked


@pytest.mark.parametrize(
    "text", ["basic authentication failed", "a design=2", "https://db/x", "key voice:pool:gold"]
)
def test_words_that_only_sound_like_secrets_stay(text: str) -> None:
    assert mask_text(text) == text


class Carrier(Enum):
    TWILIO = "twilio"
    CALLER = "+14155550123"


@dataclass
class Person:
    phone: str


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("+14155550123")


@pytest.mark.parametrize(
    "value",
    [
        "+14155550123",
        b"+14155550123",
        ["+14155550123"],
        ("x", {"+14155550123"}),
        {"a": {"b": ["call +14155550123"]}},
        {"+14155550123": 3},
        {("+14155550123", 1): 3},
        Person("+14155550123"),
        [Person("4155550123")],
        ValueError("no +14155550123"),
        Carrier.CALLER,
        Path("/recordings/+14155550123.wav"),
        {"phone": "4155550123"},
        {"phone": 4155550123},
        {"to": 14155550123},
        {"caller_id": "4155550123"},
        {"payload": {"customer_mobile_number": "4155550123"}},
        {"numbers": ["4155550123"]},
        [("To", "4155550123")],
        Broken(),
        {"a": {"b": {"c": {"d": {"e": {"f": {"g": "+14155550123"}}}}}}},
    ],
)
def test_numbers_are_found_in_every_shape_of_value(value: object) -> None:
    assert "4155550123" not in str(mask_value(value))


def test_a_structure_that_holds_itself_ends() -> None:
    loop: list[object] = ["+14155550123"]
    loop.append(loop)
    assert "4155550123" not in str(mask_value(loop))


@pytest.mark.parametrize(
    "value",
    [
        {"authorization": "Basic planted"},
        {"Authorization": b"Basic planted"},
        {"headers": [(b"authorization", b"Basic planted")]},
        {"token": ["planted"]},
        {"x-twilio-signature": "planted"},
        {"authToken": "planted"},
        {"credentials": {"a": "planted"}},
    ],
)
def test_secrets_are_hidden_by_their_key(value: object) -> None:
    assert "planted" not in str(mask_value(value))


def test_plain_values_keep_their_type() -> None:
    plain = {"count": 20971520, "ratio": 0.5, "ok": True, "none": None, "to": 20971520, "fencing_token": 17}
    assert mask_value(plain) == plain
    assert mask_value(Carrier.TWILIO) == "twilio"
    assert mask_value(UUID(int=14155550123)) == "00000000-0000-0000-0000-00034bbc8dab"
    assert mask_value(Decimal("4155550123.0")) == "4155550123.0"
    assert mask_value({"from": datetime(2025, 11, 15, tzinfo=UTC)}) == {"from": "2025-11-15T00:00:00+00:00"}


@unhurried
@given(
    st.recursive(E164, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(E164, inner, max_size=3))
)
def test_no_number_survives_in_nested_structures(value: object) -> None:
    masked = str(mask_value(value))
    assert "+" not in masked
