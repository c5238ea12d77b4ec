"""The base of all parts of a calling policy: values, checked when they are read and never changed."""

from functools import cache
from typing import Annotated
from zoneinfo import ZoneInfo, available_timezones

from pydantic import AfterValidator, BaseModel, ConfigDict


class Frozen(BaseModel):
    """An unknown field is a mistake that should be seen: a misspelt limit would be no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_max_length=2000)


@cache
def _zones() -> frozenset[str]:
    """Cached: it reads the files of all zones, and every lead may name one."""
    return frozenset(available_timezones())


def _known_zone(name: str) -> str:
    if name not in _zones():
        raise ValueError(f"there is no time zone {name[:60]!r}: write one like America/New_York")
    ZoneInfo(name)
    return name


ZoneName = Annotated[str, AfterValidator(_known_zone)]
