"""The shape of the code: a query has a reason and a user; a script a header and a twin; links lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "trunkline"
QUERIES = sorted((SOURCE / "store" / "queries").rglob("*.sql"))
SCRIPTS = sorted((SOURCE / "bus" / "lua").glob("*.lua"))
PYTHON = {path: path.read_text(encoding="utf-8") for path in sorted(SOURCE.rglob("*.py"))}


def users(call: str) -> list[str]:
    return [str(path.relative_to(SOURCE)) for path, text in PYTHON.items() if call in text]


@pytest.mark.parametrize("path", QUERIES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_query_says_why_and_is_used(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith("-- "), "a header says why it is as it is"
    name = f"{path.parent.name}/{path.stem}"
    assert users(f'query("{name}")'), f"nobody uses {name}"


def test_every_query_that_is_named_exists() -> None:
    known = {f"{path.parent.name}/{path.stem}" for path in QUERIES}
    named = {name for text in PYTHON.values() for name in re.findall(r'query\("([\w/]+)"\)', text)}
    assert named <= known


CHANGES = [
    path
    for path in QUERIES
    if re.search(r"^[^-]*UPDATE leads\b", path.read_text(encoding="utf-8"), re.MULTILINE)
]


@pytest.mark.parametrize("path", CHANGES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_change_of_a_lead_raises_its_version(path: Path) -> None:
    """Else an older entry or grant in Valkey would pass for the lead as it is now."""
    changes = re.findall(r"UPDATE leads\b.*?\bWHERE\b", path.read_text(encoding="utf-8"), re.DOTALL)
    assert changes
    for change in changes:
        assert re.search(r"\bversion\s*=\s*(CASE\b.*)?(\w\.)?version \+ 1", change), change


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_lists_its_arguments_and_has_one_twin(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith("#!lua"), "the server then knows that keys are declared"
    header = text.split("\n\n")[0] if "\n\n" in text else text
    assert "-- KEYS[1]" in header
    assert "-- ->" in header
    found = users(f'script("{path.stem}")')
    assert len(found) == 1, f"{path.stem} is called by {found}"
    assert found[0].startswith("bus/")


@pytest.mark.parametrize(
    "page", sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/**/*.md")), ids=lambda p: p.name
)
def test_links_of_the_documentation_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = [target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    local = [target for target in targets if target and not target.startswith(("http://", "https://"))]
    assert [target for target in local if not (page.parent / target).exists()] == []


def test_product_code_has_no_unfinished_ends() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX)\b")
    assert [str(path) for path, text in PYTHON.items() if marks.search(text)] == []
