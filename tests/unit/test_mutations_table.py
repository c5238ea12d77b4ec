"""The table of `make mutations` fits the code: a guard that moved takes its entry with it."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TABLE = tomllib.loads((ROOT / "tools" / "mutations.toml").read_text())["mutation"]


@pytest.mark.parametrize("mutation", TABLE, ids=lambda mutation: mutation["id"])
def test_a_mutations_guard_occurs_once_and_its_tests_exist(mutation: dict[str, Any]) -> None:
    assert (ROOT / mutation["file"]).read_text().count(mutation["old"]) == 1
    assert mutation["old"] != mutation["new"]
    for test in mutation["tests"]:
        file, _, name = test.partition("::")
        assert f"def {name}" in (ROOT / file).read_text()


def test_mutations_have_ids_of_their_own() -> None:
    assert len({mutation["id"] for mutation in TABLE}) == len(TABLE)
