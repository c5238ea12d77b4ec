"""What carriers say that calls cost, and how it is shown."""

import pytest

from trunkline.cli.leads import _costs
from trunkline.console.labels import money
from trunkline.telephony.carrier import CarrierCost
from trunkline.telephony.forms import cost_of


@pytest.mark.parametrize(
    ("amount", "currency", "cost"),
    [
        ("-0.03000", "USD", CarrierCost(30_000, "USD")),
        ("0.00345", "usd", CarrierCost(3_450, "USD")),
        (0.0571, "USD", CarrierCost(57_100, "USD")),
        (0, "INR", CarrierCost(0, "INR")),
        (None, "USD", None),
        ("", "USD", None),
        ("free", "USD", None),
        ("NaN", "USD", None),
        ("1e9", "USD", None),
        (True, "USD", None),
        ("0.1", None, None),
        ("0.1", "dollars", None),
    ],
)
def test_a_cost_is_an_amount_in_a_currency_or_none(
    amount: object, currency: object, cost: CarrierCost | None
) -> None:
    assert cost_of(amount, currency) == cost


@pytest.mark.parametrize(
    ("micros", "shown"),
    [(0, "0.00 USD"), (14_000, "0.014 USD"), (1_500_000, "1.50 USD"), (1, "0.000001 USD")],
)
def test_money_is_shown_without_zeros_that_say_nothing(micros: int, shown: str) -> None:
    assert money(micros, "USD") == shown


def test_the_command_line_shows_both_figures_and_nothing_where_there_is_none() -> None:
    told = {"cost_micros": 12_000, "carrier_cost_micros": 14_000, "carrier_cost_currency": "USD"}
    assert _costs(told) == {"cost": "0.012", "carrier_cost": "0.014 USD"}
    assert _costs({}) == {"cost": "", "carrier_cost": ""}
