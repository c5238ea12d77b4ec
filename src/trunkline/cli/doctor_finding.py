"""One line of the doctor's report: what was checked, its state, and what to do about it."""

from typing import Literal, NamedTuple


class Finding(NamedTuple):
    what: str
    state: Literal["ok", "warning", "problem"]
    detail: str
