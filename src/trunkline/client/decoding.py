"""From JSON to the API's shapes. Fields that a newer platform adds are ignored."""

import types
from collections.abc import Hashable, Mapping
from dataclasses import MISSING, fields
from datetime import date, datetime
from functools import cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints
from uuid import UUID

from trunkline.client.errors import Unreachable

T = TypeVar("T")


def decoded(shape: type[T], data: Any) -> T:
    try:
        return decode(shape, data)
    except ValueError as error:
        raise Unreachable(f"answered with something that is not understood: {error}") from error


def decode(shape: type[T], data: Any) -> T:
    """Build a dataclass from JSON. A missing or malformed field raises `ValueError` with its name. A field may say
    what it is where an older platform does not send it."""
    values = {}
    for name, hint in _hints(cast(Hashable, shape)).items():
        if name not in data and "absent" in (metadata := _metadata(shape, name)):
            values[name] = metadata["absent"]
            continue
        try:
            values[name] = _value(hint, data[name])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{shape.__name__}.{name}: {error!r}") from error
    return shape(**values)


def _metadata(shape: Any, name: str) -> Mapping[str, Any]:
    field = shape.__dataclass_fields__[name]
    return field.metadata if field.default is MISSING else {"absent": field.default}


@cache
def _hints(shape: Any) -> dict[str, Any]:
    hints = get_type_hints(shape)
    return {each.name: hints[each.name] for each in fields(shape)}


def _value(hint: Any, data: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        return None if data is None else _value(get_args(hint)[0], data)
    if get_origin(hint) is list:
        return [_value(get_args(hint)[0], each) for each in data]
    if hint is Any:
        return data
    if hint is UUID:
        return UUID(data)
    if hint in (date, datetime):
        return hint.fromisoformat(data)
    if get_origin(hint) is dict and isinstance(data, dict):
        return {key: _value(get_args(hint)[1], each) for key, each in data.items()}
    if hasattr(hint, "__dataclass_fields__"):
        return decode(hint, data)
    if hint is float and type(data) is int:
        return float(data)
    if get_origin(hint) is Literal:
        hint = type(get_args(hint)[0])  # a newer platform may have more words
    if not isinstance(data, get_origin(hint) or hint):
        raise TypeError(f"expected {hint}, got {data!r}")
    return data
