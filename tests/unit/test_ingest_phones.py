import pytest

from trunkline.leads.phones import BadPhone, to_e164


@pytest.mark.parametrize(
    ("text", "region", "e164"),
    [
        ("+14155550123", None, "+14155550123"),
        (" +1 (415) 555-0123 ", None, "+14155550123"),
        ("0171 2345678", "DE", "+491712345678"),
        ("98765 43210", "IN", "+919876543210"),
        ("+49 (0) 171 2345678", "US", "+491712345678"),
        ("+15550001234", None, "+15550001234"),
    ],
)
def test_every_usual_spelling_becomes_e164(text: str, region: str | None, e164: str) -> None:
    assert to_e164(text, region) == e164


def test_a_national_habit_is_translated_when_the_result_is_a_known_number() -> None:
    # At home, an Argentine mobile is dialled with 15; from abroad with 9.
    assert to_e164("+54 11 15 2345-6789", None) == "+5491123456789"


@pytest.mark.parametrize(
    ("text", "region", "says"),
    [
        ("hello", "US", "not a phone number"),
        ("", "US", "not a phone number"),
        ("1-800-FLOWERS", "US", "not a phone number"),
        ("+" + "1" * 60, None, "not a phone number"),
        ("4155550123", None, "country is missing"),
        ("+9991234567", None, "no such country code"),
        ("+1415", None, "too short"),
        ("+141555501234567", None, "too long"),
        ("112", "DE", "area code is missing"),
        ("+14155550123;ext=5", None, "not a phone number"),
    ],
)
def test_a_bad_phone_is_refused_with_its_reason(text: str, region: str | None, says: str) -> None:
    refused = to_e164(text, region)
    assert isinstance(refused, BadPhone)
    assert says in refused.error


def test_an_extension_is_refused_because_it_cannot_be_dialled() -> None:
    assert to_e164("+14155550123 #5", None) == BadPhone(
        "Extensions cannot be dialled. Give the number alone."
    )


def test_a_number_that_only_fits_after_losing_digits_is_refused() -> None:
    # The parser takes 12345 for a carrier's prefix and would dial +86 678901234, a stranger.
    assert isinstance(to_e164("+8612345678901234", None), BadPhone)
