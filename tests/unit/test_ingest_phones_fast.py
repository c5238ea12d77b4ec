"""The short cut for numbers in E.164: it says what the library says, or nothing."""

import random
from collections.abc import Iterator

import phonenumbers
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.leads import phones
from trunkline.leads.phones import _is_plain, _read

CODES = sorted(phonenumbers.COUNTRY_CODE_TO_REGION_CODE)


def numbers_of(calling_code: int) -> Iterator[str]:
    """Real numbers of a country, and what becomes of them when a digit is added, lost or changed."""
    dice = random.Random(calling_code)
    for region in phonenumbers.COUNTRY_CODE_TO_REGION_CODE[calling_code]:
        for kind in range(11):
            example = phonenumbers.example_number_for_type(region, kind)
            if example is not None:
                real = phonenumbers.format_number(example, phonenumbers.PhoneNumberFormat.E164)
                yield real
                yield from (
                    real[:-1],
                    real + "0",
                    f"+{calling_code}0{real[1:]}",
                    f"+{calling_code}1{real[1:]}",
                )
                yield f"{real[:-3]}{dice.randrange(1000):03}"
    for length in range(4, 16):
        yield f"+{calling_code}{dice.randrange(10**length):0{length}}"


@pytest.mark.parametrize("calling_code", CODES)
def test_a_number_that_the_short_cut_accepts_is_valid_for_the_library(calling_code: int) -> None:
    taken = [text for text in numbers_of(calling_code) if _is_plain(text)]
    assert [_read(text, None) for text in taken] == taken


def test_most_real_numbers_take_the_short_cut() -> None:
    examples = [
        phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.E164)
        for codes in phonenumbers.COUNTRY_CODE_TO_REGION_CODE.values()
        for region in codes
        if (number := phonenumbers.example_number_for_type(region, phonenumbers.PhoneNumberType.MOBILE))
    ]
    assert len(examples) > 200
    assert sum(map(_is_plain, examples)) > 0.9 * len(examples)


@settings(max_examples=2000, deadline=None)
@given(
    st.from_regex(r"\+?[0-9]{1,17}", fullmatch=True), st.sampled_from([None, "US", "DE", "IN", "IT", "MX"])
)
def test_the_short_cut_changes_no_answer(text: str, region: str | None) -> None:
    assert phones.to_e164(text, region) == _read(text, region)


@pytest.mark.parametrize(
    "text", ["+1415555012３", "+14155550123\n", " +14155550123", "+1415555012a", "14155550123", ""]
)
def test_other_spellings_do_not_take_the_short_cut(text: str) -> None:
    assert not _is_plain(text)
