"""The page of the router names tests that there are."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "explanation" / "router.md"


def test_every_race_names_tests_that_exist() -> None:
    races = PAGE.read_text(encoding="utf-8").partition("## Races")[2]
    rows = [line for line in races.splitlines() if line.startswith("| ") and "what could happen" not in line]
    assert len(rows) == 25
    for row in rows:
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", row)
        assert named, row
        for file, test in named:
            assert f"def {test}(" in (TESTS / file).read_text(encoding="utf-8"), test
