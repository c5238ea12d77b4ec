"""docs/proof/faults.md: every fault and race of matching and dialling has its row, and every row has its tests."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Those of mailboxes, jobs and the router have their own pages.
MATCHING = {"R1": (3, 6, 7, 14, 16, 18, 19, 21, 24), "R2": (8, 9, 12, 13, 14, 15, 23)}
DIALLING = {"R1": (4, 5, 8, 9, 10, 11, 12, 13, 17, 20, 22, 25), "R2": (4, 5, 6, 7, 10, 11, 24)}


def rows() -> dict[str, str]:
    """What each row says, by the name in its first cell."""
    lines = (ROOT / "docs" / "proof" / "faults.md").read_text(encoding="utf-8").splitlines()
    found = [(match.group(1), line) for line in lines if (match := re.match(r"\| ([FRL]\d[\d-]*) \|", line))]
    assert len(dict(found)) == len(found), "no row is there twice"
    return dict(found)


@cache
def known_tests() -> set[str]:
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    return {name for text in texts for name in re.findall(r"def (test_\w+)", text)}


def test_the_page_lists_every_fault_and_race() -> None:
    races = {f"{which}-{n}" for group in (MATCHING, DIALLING) for which, ns in group.items() for n in ns}
    facts = {f"L{n}" for n in range(1, 11)}
    assert set(rows()) == {f"F{n}" for n in range(1, 28)} | races | facts


@pytest.mark.parametrize("name", sorted(rows()))
def test_a_row_names_tests_that_exist(name: str) -> None:
    named = set(re.findall(r"`(test_\w+)`", rows()[name]))
    assert named
    assert named - known_tests() == set()


@pytest.mark.parametrize("n", range(1, 28))
def test_every_fault_has_a_test_named_after_it(n: int) -> None:
    assert re.search(rf"test_fault_0?{n}_", rows()[f"F{n}"])
