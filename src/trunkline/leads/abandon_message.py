"""The message of an abandoned call: who called, and where to call back. Pure."""

import string
from typing import Annotated

from pydantic import AfterValidator, Field

# The fields of a message: the merchant, and the number that it called from.
FIELDS = ("caller", "number")
NAMES_THE_CALLER = (
    "This was a call from {caller}, and nobody was free to speak with you. "
    "To reach us, or to ask not to be called again, please call {number}."
)


def _is_message(text: str) -> str:
    try:
        fields = [each for each in string.Formatter().parse(text) if each[1] is not None]
    except ValueError as error:
        raise ValueError(f"not a message: {error}") from error
    for _, name, form, conversion in fields:
        if name not in FIELDS or form or conversion:
            known = " and ".join(f"{{{each}}}" for each in FIELDS)
            raise ValueError(f"it may name {known}, and nothing else in braces")
    return text


Message = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(_is_message)]


def spoken(message: str, *, caller: str, number: str) -> str:
    """Digits one by one: a voice reads them as they are dialled."""
    return message.format(caller=caller, number=" ".join(number.removeprefix("+")))
