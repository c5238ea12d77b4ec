"""The documentation of settings is complete, and settings are the only reader of the environment."""

import ast
import re
from pathlib import Path

import pytest

from trunkline.settings import Settings
from trunkline.settings.document import rewritten
from trunkline.settings.variables import variables_of

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "trunkline"
PAGE = (ROOT / "docs" / "settings.md").read_text()
ROW = re.compile(r"^\| `([A-Z_]+)` \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
READS_ENVIRONMENT = ("settings", "client", "agent", "crashpoint.py")
# Not a setting of ours: the embedded servers need the loader's path of the process that starts them.
PASSES_ON = {"embedded/process.py"}


def test_every_variable_is_documented_and_no_other() -> None:
    documented = [row[0] for row in ROW.findall(PAGE)]
    assert documented == list(variables_of(Settings))


def test_default_meaning_and_limits_are_those_of_the_code() -> None:
    documented = {name: (default, meaning, allowed) for name, default, meaning, allowed in ROW.findall(PAGE)}
    for variable in variables_of(Settings).values():
        default = f"`{variable.default}`" if variable.default else "unset"
        assert documented[variable.name] == (default, variable.meaning, variable.allowed)


def test_the_page_is_what_the_generator_makes() -> None:
    assert rewritten(PAGE) == PAGE, "run: python -m trunkline.settings.document docs/settings.md"


@pytest.mark.parametrize("variable", variables_of(Settings).values(), ids=lambda variable: variable.name)
def test_meanings_are_sentences(variable: object) -> None:
    assert re.fullmatch(r"[A-Z`].+\.", getattr(variable, "meaning", ""))


def test_only_settings_read_the_environment() -> None:
    readers = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if path.relative_to(SOURCE).parts[0] not in READS_ENVIRONMENT and _reads_environment(path.read_text())
    }
    assert readers == PASSES_ON


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.environ['A']",
        "import os as o\no.getenv('A')",
        "from os import environ",
        "from os import getenv",
    ],
)
def test_readers_of_the_environment_are_recognised(source: str) -> None:
    assert _reads_environment(source)


def _reads_environment(source: str) -> bool:
    names = {"environ", "environb", "getenv", "getenvb"}
    return any(
        (isinstance(node, ast.Attribute) and node.attr in names)
        or (
            isinstance(node, ast.ImportFrom)
            and node.module == "os"
            and names & {alias.name for alias in node.names}
        )
        for node in ast.walk(ast.parse(source))
    )
