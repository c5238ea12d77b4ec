"""Parses the cost of a call from a carrier's data."""

from decimal import Decimal, InvalidOperation

from trunkline.telephony.carrier import CarrierCost

# No call costs a million.
UNITS_MAX = 1_000_000
MICROS = 1_000_000


def cost_of(amount: object, currency: object = "USD") -> CarrierCost | None:
    """From a number, or a text with one. Some carriers write charges with a minus."""
    if isinstance(amount, bool) or not isinstance(amount, str | int | float):
        return None
    try:
        units = abs(Decimal(str(amount)))
    except InvalidOperation:
        return None
    is_currency = (
        isinstance(currency, str) and len(currency) == 3 and currency.isalpha() and currency.isascii()
    )
    if not units.is_finite() or units >= UNITS_MAX or not is_currency:
        return None
    return CarrierCost(round(units * MICROS), str(currency).upper())
