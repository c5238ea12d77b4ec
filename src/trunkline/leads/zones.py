"""The location of a phone number, as far as the number itself shows it: its time zones, and its country.

Where the number alone is not enough, all zones of its country are candidates, and a window is open only if it is open
in each of them. A number that belongs to no country (satellites, international toll-free) has no zone, and its local
time is unknown.
"""

from functools import cache, lru_cache
from importlib.resources import files

import phonenumbers
from phonenumbers import NumberParseException, PhoneNumber, timezone

_UNKNOWN = timezone.UNKNOWN_TIMEZONE


@lru_cache(maxsize=65_536)
def zones_of(phone: str) -> tuple[str, ...]:
    """Every zone the callee may be in; empty if unknown. A mobile number may be anywhere in its country."""
    number = _parsed(phone)
    if number is None:
        return ()
    known = tuple(zone for zone in timezone.time_zones_for_number(number) if zone != _UNKNOWN)
    return known or _zones_of_country(region_of(phone))


@lru_cache(maxsize=65_536)
def region_of(phone: str) -> str | None:
    """The country as two letters."""
    number = _parsed(phone)
    return None if number is None else phonenumbers.region_code_for_number(number)


def _parsed(phone: str) -> PhoneNumber | None:
    try:
        return phonenumbers.parse(phone, None)
    except NumberParseException:
        return None


@cache
def _zones_of_country(region: str | None) -> tuple[str, ...]:
    return tuple(_by_country().get(region, ())) if region else ()


@cache
def _by_country() -> dict[str, list[str]]:
    """From the table that comes with the time zone database."""
    table = (files("tzdata") / "zoneinfo" / "zone1970.tab").read_text(encoding="utf-8")
    zones: dict[str, list[str]] = {}
    for line in table.splitlines():
        if line and not line.startswith("#"):
            countries, _, zone = line.split("\t")[:3]
            for country in countries.split(","):
                zones.setdefault(country, []).append(zone)
    return zones
