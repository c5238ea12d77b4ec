"""Values that are made for every call, many of them. Frozen; equal when their fields are.

    class Greeting(Value, frozen=True):
        text: str
        phone: Private[str]

Everywhere else a frozen dataclass does. With nine fields, one takes 0.8 µs to make and 2 µs to replace, and a dial
makes a hundred: 10 % of its CPU time. A `Value` takes 0.1 µs. `repr` omits private fields, so that a value may appear
in an error or a log line.
"""

from functools import cache
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from msgspec import Struct
from msgspec.structs import replace

__all__ = ["Private", "Value", "replace"]

_T = TypeVar("_T")
_PRIVATE = "private"
Private = Annotated[_T, _PRIVATE]


class Value(Struct, frozen=True):
    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in _shown(type(self)))
        return f"{type(self).__name__}({shown})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """As `__repr__`: the struct's own shows everything."""
        return [(name, getattr(self, name)) for name in _shown(type(self))]


@cache
def _shown(kind: type[Value]) -> tuple[str, ...]:
    hints: dict[str, Any] = get_type_hints(kind, include_extras=True)
    return tuple(name for name in kind.__struct_fields__ if _PRIVATE not in get_args(hints[name])[1:])
