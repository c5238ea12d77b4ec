"""`make mutations`: its table fits the code, and it tells a test that notices from one that cannot run."""

import tomllib
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TABLE = tomllib.loads((ROOT / "tools" / "mutations.toml").read_text())["mutation"]


def load_tool() -> Any:
    spec = spec_from_loader("mutations", SourceFileLoader("mutations", str(ROOT / "tools" / "mutations")))
    assert spec is not None
    assert spec.loader is not None
    tool = module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


TOOL = load_tool()


@pytest.mark.parametrize("mutation", TABLE, ids=lambda mutation: mutation["id"])
def test_a_mutations_guard_occurs_once_and_its_tests_exist(mutation: dict[str, Any]) -> None:
    place = TOOL.find(ROOT, mutation)
    assert not isinstance(place, str), place
    assert mutation["old"].split() != mutation["new"].split()
    for test in mutation["tests"]:
        file, _, name = test.partition("::")
        assert f"def {name}" in (ROOT / file).read_text()


def test_mutations_have_ids_of_their_own() -> None:
    assert len({mutation["id"] for mutation in TABLE}) == len(TABLE)


GUARDED = """
def may_call(age: int) -> bool:
    if age < 18:
        return False
    return True
"""
TESTS = """
from trunkline.gate import may_call

def test_a_child_is_not_called() -> None:
    assert not may_call(3)

def test_nothing() -> None:
    pass
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A product of one guard, with a test that notices it and one that does not."""
    package = tmp_path / "src" / "trunkline"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "gate.py").write_text(GUARDED)
    (tmp_path / "test_gate.py").write_text(TESTS)
    # The nearest settings of pytest: not those of a folder above.
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib -p no:schemathesis\n")
    return tmp_path


@pytest.mark.parametrize(
    ("old", "new", "test", "expected"),
    [
        ("if age < 18:", "if False:", "test_a_child_is_not_called", "killed: test_a_child_is_not_called"),
        ("if age < 18:", "if False:", "test_nothing", "survived"),
        ("if age < 18:", "if age < 18:", "test_a_child_is_not_called", "survived"),
        ("if age < 18:", "if age <", "test_a_child_is_not_called", "broken: it does not compile"),
        ("def may_call(", "import nowhere\ndef may_call(", "test_nothing", "broken: pytest ended with 4"),
        ("if age < 18:", "if agee < 18:", "test_a_child_is_not_called", "broken: pytest ended with 1"),
        ("if age < 18:", "if False:", "test_that_is_not_there", "broken: without the mutation"),
        (
            "if age < 21:",
            "if False:",
            "test_a_child_is_not_called",
            "not found: `if age < 21:` occurs 0 times",
        ),
        ("return", "pass", "test_a_child_is_not_called", "not found: `return` occurs 2 times"),
    ],
)
def test_the_result_of_a_mutation(tree: Path, old: str, new: str, test: str, expected: str) -> None:
    mutation = {"old": old, "new": new, "tests": [f"test_gate.py::{test}"]}
    passing = {(f"test_gate.py::{name}",) for name in ("test_a_child_is_not_called", "test_nothing")}
    assert str(TOOL.judge(tree, mutation, passing)).startswith(expected)
    assert (tree / "src" / "trunkline" / "gate.py").read_text() == GUARDED


def test_a_test_that_fails_anyway_proves_nothing(tree: Path) -> None:
    (tree / "test_gate.py").write_text("def test_wrong() -> None:\n    assert False\n")
    mutation = {"old": "if age < 18:", "new": "if False:", "tests": ["test_gate.py"]}
    assert TOOL.judge(tree, mutation, set()).word == "broken"


def test_a_run_past_its_time_limit_is_broken(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation = {"old": "if age < 18:", "new": "if False:", "tests": ["test_gate.py"]}
    passing = {("test_gate.py",)}
    monkeypatch.setattr(TOOL, "TIMEOUT_S", 0.001)
    assert TOOL.judge(tree, mutation, passing).word == "broken"


def test_a_guard_is_found_behind_the_text_of_after_wherever_it_moved(tree: Path) -> None:
    (tree / "src" / "trunkline" / "other.py").write_text(GUARDED.replace("may_call", "may_text"))
    mutation = {"old": "if age < 18: return False", "new": "", "tests": []}
    assert "occurs 2 times" in TOOL.find(tree, mutation)
    place = TOOL.find(tree, mutation | {"after": "def may_text("})
    assert place.file.name == "other.py"


def test_a_draw_is_the_same_every_time(tree: Path) -> None:
    assert list(TOOL.guards(tree)) == ["src/trunkline/gate.py:3: if age < 18"]
