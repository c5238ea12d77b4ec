"""Types and descriptions of fields that several resources have.

Pydantic reads the metadata of a dataclass' field as the arguments of its own `Field`, and `__pydantic_config__` as its
configuration. A client without pydantic ignores both.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

# Pydantic's handler: from a type to its schema, a dictionary.
SchemaOf = Callable[[Any], dict[str, Any]]

OBJECT_ID = r"^[a-z0-9][a-z0-9_-]{0,62}$"
PHONE_MAX = 40


@dataclass(frozen=True, slots=True)
class TextRule:
    """Which texts a field accepts."""

    pattern: str | None = None
    min_length: int = 0
    max_length: int | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: SchemaOf) -> dict[str, Any]:
        schema = dict(handler(source))
        if self.pattern is not None:
            schema["pattern"] = self.pattern
        if self.min_length:
            schema["min_length"] = self.min_length
        if self.max_length is not None:
            schema["max_length"] = self.max_length
        return schema


class MomentRule:
    """A point in time: written as text, with an offset from UTC."""

    def __get_pydantic_core_schema__(self, source: Any, handler: SchemaOf) -> dict[str, Any]:
        aware = handler(source) | {"tz_constraint": "aware"}
        return {
            "type": "function-wrap",
            "function": {"type": "no-info", "function": _moment},
            "schema": aware,
        }


def _moment(value: object, read: Callable[[object], datetime]) -> datetime:
    """A bare number would pass as seconds since 1970, and a client's milliseconds as the year 50,000."""
    if value is not None and not isinstance(value, str | datetime):
        raise ValueError("write a date and time as text, for example 2030-05-01T09:30:00+02:00")
    moment = read(value)
    try:
        moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("this date lies beyond the end of the calendar") from None
    return moment


ObjectId = Annotated[str, TextRule(OBJECT_ID)]
Name = Annotated[str, TextRule(r"^[^\x00-\x1f\x7f]+$", 1, 200)]
# Printable text that Postgres can store: no control characters, so no NUL.
Text = Annotated[str, TextRule(r"^[^\x00-\x1f\x7f]*$")]
PhoneText = Annotated[str, TextRule(r"^[^\x00-\x1f\x7f]*$", 1, PHONE_MAX)]
Region = Annotated[str, TextRule(r"^[A-Z]{2}$")]
Moment = Annotated[datetime, MomentRule()]
WhoseAgents = Literal["ours", "elsewhere"]

AGENTS = (
    "Whose agents take the calls. `ours`: the dialer reserves a slot of a pod before each dial. `elsewhere`: external "
    "agents answer, and the dialer reserves no slot. Only a key of the platform or of the reseller may set it."
)


class Indexed:
    """The client once returned these shapes as plain JSON: `stop["subject"]` is still `stop.subject`."""

    __slots__ = ()

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


def about(description: str, **rules: Any) -> dict[str, Any]:
    """The metadata of a field: its description, and limits by the names of pydantic's `Field`. `absent` is what the
    client takes where an older platform does not send the field."""
    return {"description": description, **rules}


def body(*examples: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a request body. Unknown fields are refused."""
    return {"extra": "forbid", "json_schema_extra": {"examples": list(examples)}}


OF_RESELLER = about("null: the platform's.")
OF_MERCHANT = about("null: of the whole reseller, or the platform's.")
FOR_RESELLER = about("The reseller it belongs to. Left out: the key's own, or the platform.")
FOR_MERCHANT = about("The merchant it belongs to. Left out: the key's own, or all of them.")
CREATED_AT = about("When it was created.")
UPDATED_AT = about("When it last changed.")
ITS_ID = about("Its id.")
