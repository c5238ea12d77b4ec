"""The documentation of settings is complete, each on the page of its rank; only settings read the environment."""

import ast
import re
from pathlib import Path

import pytest

import trunkline.settings.document
from trunkline.settings import Settings
from trunkline.settings.document import rewritten
from trunkline.settings.tiers import parse_tiers
from trunkline.settings.variables import variables_of

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "trunkline"
PAGES = {
    name: (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
    for name in ("settings.md", "tuning.md")
}
SECTION = re.compile(r"<!-- settings: (\w+) -->(.*?)<!-- /settings -->", re.DOTALL)
VARIABLES = variables_of(Settings)
ROW = re.compile(r"^\| `([A-Z_]+)` \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
READS_ENVIRONMENT = ("settings", "client", "agent", "crashpoint.py")
# Not a setting of ours: the embedded servers need the loader's path of the process that starts them.
PASSES_ON = {"embedded/process.py"}


def test_every_variable_is_documented_once_on_the_page_of_its_rank_and_no_other() -> None:
    sections = {page: SECTION.findall(text) for page, text in PAGES.items()}
    assert {page: [rank for rank, _ in found] for page, found in sections.items()} == {
        "settings.md": ["operator", "carrier", "ignored"],
        "tuning.md": ["tuning"],
    }
    for rank, text in (section for found in sections.values() for section in found):
        of_rank = [variable.name for variable in VARIABLES.values() if variable.rank == rank]
        assert [row[0] for row in ROW.findall(text)] == of_rank
    rows = [row[0] for text in PAGES.values() for row in ROW.findall(text)]
    assert sorted(rows) == sorted(VARIABLES)


def test_default_meaning_and_limits_are_those_of_the_code() -> None:
    rows = [row for page in PAGES.values() for row in ROW.findall(page)]
    documented = {name: (default, meaning, allowed) for name, default, meaning, allowed in rows}
    for variable in VARIABLES.values():
        default = f"`{variable.default}`" if variable.default else "unset"
        assert documented[variable.name] == (default, variable.meaning, variable.allowed)


@pytest.mark.parametrize("page", PAGES)
def test_the_page_is_what_the_generator_makes(page: str) -> None:
    command = "python -m trunkline.settings.document docs/reference/settings.md docs/reference/tuning.md"
    assert rewritten(PAGES[page]) == PAGES[page], f"run: {command}"
    assert command in PAGES[page]
    assert command in (trunkline.settings.document.__doc__ or "")


def test_an_operator_meets_some_25_settings() -> None:
    """One more is one more that everybody has to read: tuning is the rank of what has a default that fits."""
    assert 20 <= sum(variable.rank == "operator" for variable in VARIABLES.values()) <= 28


def test_the_accounts_of_carriers_are_a_rank_of_their_own() -> None:
    groups = {variable.group for variable in VARIABLES.values() if variable.rank == "carrier"}
    assert groups == {"twilio", "plivo", "exotel", "vapi"}
    assert {variable.rank for variable in VARIABLES.values() if variable.group in groups} == {"carrier"}


def test_a_variable_has_the_rank_ignored_exactly_if_no_code_reads_it() -> None:
    """By the field's name: `settings.redis.min_idle` is read nowhere."""
    code = "".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    for group, inner in Settings.model_fields.items():
        for field, info in getattr(inner.annotation, "model_fields", {}).items():
            variable = VARIABLES[str(info.validation_alias)]
            is_read = bool(re.search(rf"\.{field}\b", code))
            assert is_read is (variable.rank != "ignored"), f"{group}.{field}"


def test_the_documented_meaning_of_an_empty_tier_config_is_true() -> None:
    (said,) = re.findall(r"`\{\}`: (.+)", VARIABLES["TIER_CONFIG"].meaning)
    tiers = parse_tiers(VARIABLES["TIER_CONFIG"].default)
    assert re.findall(r"`(\w+)`", said) == list(tiers)
    assert not re.search(r"\b(gold|basic|overflow)\b", said)
    assert ("one at a time" in said) is all(tier.max_concurrent == 1 for tier in tiers.values())


@pytest.mark.parametrize("variable", VARIABLES.values(), ids=lambda variable: variable.name)
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
