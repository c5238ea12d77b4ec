"""docs/explanation/mailboxes.md is complete and true: every known case has its row, every test that is named exists."""

import ast
import re
from pathlib import Path

import pytest

from trunkline.cli.queues import mailbox as app
from trunkline.mailbox import stores
from trunkline.settings import Settings
from trunkline.settings.variables import variables_of
from trunkline.telemetry import metrics

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "mailboxes.md").read_text(encoding="utf-8")
TRIED = PAGE.partition("## What was tried on it")[2]
ROWS = re.findall(r"^\| (?!case|---|\*\*)([^|]+) \| ([^|]+) \| ([^|]+) \|$", TRIED, re.MULTILINE)
NAMED = set(re.findall(r"`(test_\w+)`", TRIED))
# The scenarios of the source, and the races of mailboxes that attacks on the design have found.
SCENARIOS = {
    "two webhooks, one issue",
    "two workers, one message",
    "crash before the commit",
    "crash after the commit A: no new events",
    "crash after the commit B: new events before the reclaim",
    "crash after the commit C: the reclaim before new events",
}
RACES = {"R1-1", "R1-2", "R1-22", "R2-6", "R2-25"}
# All that is in these files is about races and faults.
WHOLE = (
    "integration/test_mailbox_races.py",
    "integration/test_mailbox_scenarios.py",
    "integration/test_mailbox_conformance.py",
    "chaos/test_mailbox_faults.py",
    "chaos/test_mailbox_neighbours.py",
)


def names_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    return {function.name for function in functions if function.name.startswith("test_")}


def test_every_scenario_and_every_race_has_a_row_with_tests() -> None:
    assert {case for case, _, _ in ROWS} >= SCENARIOS
    assert {name for case, _, _ in ROWS for name in re.findall(r"^R\d-\d+", case)} == RACES
    assert all("`test_" in tests for _, _, tests in ROWS)


def test_every_test_that_is_named_exists() -> None:
    existing = set[str]().union(*map(names_in, (ROOT / "tests").rglob("test_mailbox_*.py")))
    assert NAMED - existing == set()


@pytest.mark.parametrize("path", WHOLE)
def test_every_race_and_fault_that_is_tested_is_named(path: str) -> None:
    assert names_in(ROOT / "tests" / path) - NAMED == set()


def test_every_command_is_documented_and_no_other() -> None:
    commands = {
        command.name or str(command.callback.__name__)
        for command in app.registered_commands
        if command.callback
    }
    assert set(re.findall(r"^\| `trunkline mailbox ([\w-]+)`", PAGE, re.MULTILINE)) == commands


def test_settings_and_metrics_that_are_named_exist_and_all_of_them_are_named() -> None:
    settings = {name for name in variables_of(Settings) if name.startswith("MAILBOX_")}
    assert set(re.findall(r"`(MAILBOX_\w+)`", PAGE)) == settings
    named = set(re.findall(r"`((?:trunkline_mailbox|issues|events_per|redis)_[a-z_]+[a-z])`", PAGE))
    assert named <= {metric.name for metric in metrics.DECLARED}
    assert named >= metrics.ISSUE_METRICS


def test_the_stores_have_the_methods_that_are_named() -> None:
    text = PAGE.partition("Code that drives the steps itself")[2].partition("\n\n")[0]
    issues, _, events = text.partition("`EventLogStore`")
    for store, part in (
        (stores.IssueStore, issues.partition("`IssueStore`")[2]),
        (stores.EventLogStore, events),
    ):
        methods = {name for name in vars(store) if not name.startswith("_")}
        assert set(re.findall(r"`(\w+)`", part)) == methods


def test_every_python_example_is_python() -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        ast.parse(example)
