"""From what people write to E.164, or a sentence that says what is wrong with it.

A number only has to be possible, not known to be assigned: ranges open faster than any list of them. But when
the parser changed digits to make sense of the input, the result has to be a known one: a wrong guess rings a
stranger.
"""

import re
from dataclasses import dataclass

import phonenumbers
from phonenumbers import NumberParseException, PhoneNumber, PhoneNumberFormat, ValidationResult

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
