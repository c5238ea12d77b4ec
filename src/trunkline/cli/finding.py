"""What the doctor says."""

from typing import Literal, NamedTuple


class Finding(NamedTuple):
    what: str
    state: Literal["ok", "warning", "problem"]
    detail: str
