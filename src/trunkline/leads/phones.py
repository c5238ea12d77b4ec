"""From what people write to E.164, or a sentence that says what is wrong with it.

A number only has to be possible, not known to be assigned: ranges open faster than any list of them. But when the
parser changed digits to make sense of the input, the result has to be a known one: a wrong guess calls a stranger.

The library takes some 20 µs for a number. `_is_plain` recognises one that is E.164 already, and that the library would
not change, in 1 µs.
"""

import re
from dataclasses import dataclass
from functools import cache

import phonenumbers
from phonenumbers import NumberParseException, PhoneMetadata, PhoneNumber, PhoneNumberFormat, ValidationResult

TEXT_MAX = 40

# What the database accepts too.
_E164 = re.compile(r"\+[1-9][0-9]{6,14}")

_NOT_A_NUMBER = "This is not a phone number. Write it as +<country code><number>, for example +14155550123."
_NO_COUNTRY = (
    "The country is missing. Start the number with + and the country code, "
    "or set the merchant's default_region."
)
_IMPOSSIBLE = {
    ValidationResult.INVALID_COUNTRY_CODE: "There is no such country code.",
    ValidationResult.TOO_SHORT: "The number is too short for its country.",
    ValidationResult.TOO_LONG: "The number is too long for its country.",
    ValidationResult.INVALID_LENGTH: "The number does not have a length that its country uses.",
    ValidationResult.IS_POSSIBLE_LOCAL_ONLY: "The area code is missing.",
}


@dataclass(frozen=True, slots=True)
class BadPhone:
    """Why a text is not a phone number that can be dialled."""

    error: str


def to_e164(text: str, default_region: str | None) -> str | BadPhone:
    """`default_region` is the country of numbers written without one."""
    return text if _is_plain(text) else _read(text, default_region)


def _is_plain(text: str) -> bool:
    """Whether the library would take this text as it is. May be False for such a text, never True for another.

    It would if the length is one that the country uses, and if nothing at the front could be a prefix for calls within
    the country, which it strips.
    """
    if not _E164.fullmatch(text):
        return False
    for length in (1, 2, 3):
        if plan := _plan(text[1 : 1 + length]):
            national = text[1 + length :]
            return len(national) in plan.lengths and not plan.prefix.match(national)
    return False


@dataclass(frozen=True, slots=True)
class _Plan:
    """The numbering plan of a country calling code."""

    lengths: frozenset[int]
    prefix: re.Pattern[str]


@cache
def _plan(calling_code: str) -> _Plan | None:
    """Cached for every text of up to three digits, of which there are no more than 1,110."""
    code = int(calling_code)
    region = phonenumbers.region_code_for_country_code(code)
    metadata = PhoneMetadata.metadata_for_region_or_calling_code(code, region)
    if metadata is None or metadata.general_desc is None:
        return None
    prefix = metadata.national_prefix_for_parsing
    # Without a prefix nothing is stripped; "$^" matches nothing that has digits.
    return _Plan(frozenset(metadata.general_desc.possible_length), re.compile(prefix or "$^"))


def _read(text: str, default_region: str | None) -> str | BadPhone:
    if len(text) > TEXT_MAX or re.search(r"[A-Za-z]", text):
        return BadPhone(_NOT_A_NUMBER)
    try:
        number = phonenumbers.parse(text, default_region)
    except NumberParseException as error:
        return BadPhone(_unparsed(text, error, default_region))
    reason = phonenumbers.is_possible_number_with_reason(number)
    if reason != ValidationResult.IS_POSSIBLE:
        return BadPhone(_IMPOSSIBLE[reason])
    return _checked(text, number)


def _unparsed(text: str, error: NumberParseException, default_region: str | None) -> str:
    if error.error_type != NumberParseException.INVALID_COUNTRY_CODE:
        return _NOT_A_NUMBER
    if text.lstrip().startswith(("+", "\N{FULLWIDTH PLUS SIGN}")):
        return _IMPOSSIBLE[ValidationResult.INVALID_COUNTRY_CODE]
    return _NO_COUNTRY if default_region is None else _NOT_A_NUMBER


def _checked(text: str, number: PhoneNumber) -> str | BadPhone:
    e164 = phonenumbers.format_number(number, PhoneNumberFormat.E164)
    if number.extension:
        return BadPhone("Extensions cannot be dialled. Give the number alone.")
    if not _E164.fullmatch(e164):
        return BadPhone("A phone number has 7 to 15 digits, the country code included.")
    if _was_guessed(text, e164) and not phonenumbers.is_valid_number(number):
        return BadPhone(_NOT_A_NUMBER)
    return e164


def _was_guessed(text: str, e164: str) -> bool:
    """Whether an international number lost digits on the way. `+49 (0) 30 …` is a habit, not a guess."""
    if not text.lstrip().startswith("+"):
        return False
    written = re.sub(r"\D", "", text.replace("(0)", ""))
    return written != e164[1:]
