"""A decision is found by its number: no two have the same one, and whoever names a record names one that is there."""

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
RECORDS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
NAMED = re.compile(r"\b(\d{4}-[a-z0-9-]+\.md)\b")


def test_no_two_decisions_have_the_same_number() -> None:
    numbers = Counter(record.name[:4] for record in RECORDS)
    assert RECORDS
    assert [number for number, many in numbers.items() if many > 1] == []


def test_a_decision_begins_with_its_number() -> None:
    wrong = [r.name for r in RECORDS if not r.read_text("utf-8").startswith(f"# {int(r.name[:4])}. ")]
    assert wrong == []


def test_every_decision_that_is_named_is_there() -> None:
    texts = [
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "src").rglob("*.py"),
        *ROOT.glob("*.md"),
        *(path for path in (ROOT / "tools").iterdir() if path.is_file()),
    ]
    there = {record.name for record in RECORDS}
    named = {name for path in texts for name in NAMED.findall(path.read_text("utf-8", errors="replace"))}
    assert named
    assert named - there == set()
