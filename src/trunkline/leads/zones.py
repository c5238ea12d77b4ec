"""Where a phone number is, as far as the number itself tells: its time zones, and its country."""

from functools import lru_cache

import phonenumbers
from phonenumbers import NumberParseException, PhoneNumber, timezone

_UNKNOWN = timezone.UNKNOWN_TIMEZONE


@lru_cache(maxsize=65_536)
def zones_of(phone: str) -> tuple[str, ...]:
    """Every zone the callee may be in; none if nobody knows. A mobile number may be anywhere in its country."""
    number = _parsed(phone)
    if number is None:
        return ()
    return tuple(zone for zone in timezone.time_zones_for_number(number) if zone != _UNKNOWN)


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
