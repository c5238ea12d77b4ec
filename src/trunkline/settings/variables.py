"""Declares a setting as a field of a group, with all properties of its variable; and lists the declared variables as
rows: for reading, for messages, for documentation."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal, cast, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import BaseModel, ConfigDict, Field, SecretStr
from pydantic.fields import FieldInfo

from trunkline.settings.values import Allowed

MASK = "***"
# Up to five digits at the end of a URL, `redis://cache:6379`, are a port.
_PASSWORD = re.compile(r"((?<=://)[^/:@]*:(?!\d{1,5}$)|(?<=password=))[^/&\s]+?(?=@|&|$)")

# The audience of a setting. `operator`: the operator of an installation decides it. `carrier`: a carrier's account.
# `tuning`: the default fits nearly everywhere. `ignored`: accepted, since manifests name it, and without effect.
Rank = Literal["operator", "carrier", "tuning", "ignored"]


def env(name: str, default: object, meaning: str, *, rank: Rank = "tuning", **limits: Any) -> Any:
    """A field that is read from the variable `name`. Its default is written as an operator would write it; the meaning
    of an ignored one says why it has no effect."""
    value: dict[str, Any] = {"default_factory" if callable(default) else "default": default}
    return Field(
        validation_alias=name, description=meaning, json_schema_extra={"rank": rank}, **value, **limits
    )


operator_env = partial(env, rank="operator")
account_env = partial(env, rank="carrier")


class Group(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, validate_by_alias=True, validate_by_name=True
    )


@dataclass(frozen=True, slots=True)
class Variable:
    name: str
    group: str | None
    meaning: str
    default: str
    allowed: str
    secret: bool
    rank: Rank

    def masked(self, value: object) -> str:
        """The value as it may be shown: secrets not at all, URLs without their password."""
        text = str(value)
        return MASK if self.secret and text else _PASSWORD.sub(rf"\1{MASK}", text)


@cache
def variables_of(model: type[BaseModel]) -> dict[str, Variable]:
    """Every variable of a model and of its groups, in their order."""
    own = [_variable(None, field) for field in model.model_fields.values() if field.validation_alias]
    grouped = [
        _variable(name, inner)
        for name, field in model.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        for inner in field.annotation.model_fields.values()
    ]
    return {variable.name: variable for variable in (*own, *grouped)}


def _variable(group: str | None, field: FieldInfo) -> Variable:
    marks = list(_marks(field.annotation, field.metadata))
    return Variable(
        name=str(field.validation_alias),
        group=group,
        meaning=field.description or "",
        default=_default(field),
        allowed=_allowed(marks),
        secret=SecretStr in marks,
        # As `env` stored it.
        rank=cast("dict[str, Rank]", field.json_schema_extra)["rank"],
    )


def _default(field: FieldInfo) -> str:
    if field.default_factory is not None:
        return (field.default_factory.__doc__ or "").strip("`")
    return "" if field.default is None else str(field.default)


def _marks(annotation: Any, metadata: list[Any]) -> Iterator[Any]:
    """All parts of a type: itself, its limits and markers, and those of its arguments."""
    yield annotation
    yield from metadata
    for part in get_args(annotation) if get_origin(annotation) is not Literal else ():
        if isinstance(part, FieldInfo):
            yield from part.metadata
        elif part is not Ellipsis:
            yield from _marks(part, [])


def _allowed(marks: list[Any]) -> str:
    for mark in marks:
        if isinstance(mark, Allowed):
            return mark.text
        if get_origin(mark) is Literal:
            *others, last = (f"`{choice}`" for choice in get_args(mark))
            return f"{', '.join(others)} or {last}"
    low = next(mark.ge for mark in marks if isinstance(mark, Ge))
    high = next(mark.le for mark in marks if isinstance(mark, Le))
    return f"a whole number from {low} to {high}"
