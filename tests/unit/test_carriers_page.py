"""docs/reference/carriers.md knows every carrier, every credential, every variable, and every row of doubt."""

import re
from pathlib import Path

import pytest

from trunkline.settings import Settings
from trunkline.settings.variables import variables_of
from trunkline.telephony.carrier_registry import CARRIERS, NEEDS
from trunkline.telephony.reply_rules import ROWS

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "carriers.md").read_text(encoding="utf-8")
SECTIONS = {
    part.partition("\n")[0].strip().lower(): part for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
}


@pytest.mark.parametrize("carrier", CARRIERS)
def test_every_credential_and_variable_of_a_carrier_is_named(carrier: str) -> None:
    section = SECTIONS[carrier]
    assert {name for name in NEEDS[carrier].names if f"`{name}" not in section} == set()
    own = [name for name in variables_of(Settings) if name.startswith(f"{carrier.upper()}_")]
    assert own
    assert {name for name in own if f"`{name}`" not in section} == set()


@pytest.mark.parametrize("carrier", CARRIERS)
def test_every_row_of_doubt_is_in_the_carriers_table(carrier: str) -> None:
    section = SECTIONS[carrier]
    for row in ROWS[carrier]:
        for word in (row.code, row.word, str(row.status or "")):
            assert not word or re.search(rf"\b{word}\b", section), row
