"""One line of the doctor's report: what was looked at, how it is, and what to do about it."""

from typing import Literal, NamedTuple


class Finding(NamedTuple):
    what: str
    state: Literal["ok", "warning", "problem"]
    detail: str
