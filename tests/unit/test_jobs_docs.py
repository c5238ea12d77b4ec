"""docs/explanation/jobs.md is complete and true: its example runs, its lists have everything, its tests exist."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trunkline.cli.queues import jobs as app
from trunkline.jobs import Cancel, Done, JobType, Run
from trunkline.jobs.platform.catalogue import known_types
from trunkline.jobs.recurring import declared_schedules
from trunkline.jobs.registry import declared
from trunkline.settings import Settings
from trunkline.settings.variables import variables_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "jobs.md").read_text()
CASES = PAGE.partition("## What was tried on it")[2]
ROWS = re.findall(r"^\| (?!case|---|\*\*)([^|]+) \| ([^|]+) \| ([^|]+) \|$", CASES, re.MULTILINE)
NAMED = re.findall(r"`(test_\w+)`", CASES)
# The source's verification strategy, what its redesign must survive, and the races of jobs found by attack.
REQUIRED = {
    "happy path", "missed NOTIFY", "concurrent workers", "crash recovery", "idempotency", "manual scenario",
    "listener killed", "Postgres restarted", "worker stopped past its lease and continued",
    "two claims at once under one key", "every end of a run", "a stale owner ends", "freeing a key",
    "a count that drifted", "keys ended in opposite order",
    "a change during a run", "failed beside a newer one", "lease lost beside a newer one",
    "snoozed or given back beside a newer one", "replayed beside a newer one", "keys enqueued in opposite order",
    "due between the claim and the question what is next", "blocked or due jobs as \"next\"",
    "a stale owner renews, finishes, fails or buries",
    "unknown type", "payload that does not serialise", "payload of 10 MB", "`run_at` in the past",
}  # fmt: skip
# All that is in these files is about races and faults.
WHOLE = ("integration/test_jobs_races.py", "chaos/test_jobs_faults.py", "unit/test_jobs_finisher.py")


def names_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    functions = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    return {function.name for function in functions if function.name.startswith("test_")}


def test_every_required_case_has_a_row_with_a_test() -> None:
    assert {row[0] for row in ROWS} >= REQUIRED
    assert all("test_" in row[2] for row in ROWS)


def test_every_test_that_is_named_exists() -> None:
    existing = set().union(*(names_in(path) for path in (ROOT / "tests").rglob("test_jobs_*.py")))
    assert set(NAMED) - existing == set()


@pytest.mark.parametrize("path", WHOLE)
def test_every_race_and_fault_that_is_tested_is_named(path: str) -> None:
    assert names_in(ROOT / "tests" / path) - set(NAMED) == set()


def test_every_command_is_documented_and_no_other() -> None:
    commands = {
        command.name or str(command.callback.__name__)
        for command in app.registered_commands
        if command.callback
    }
    assert set(re.findall(r"^\| `trunkline jobs (\w+)", PAGE, re.MULTILINE)) == commands


def test_every_job_type_of_the_platform_is_documented_with_its_number_of_tries() -> None:
    types = [kind for kind in known_types() if kind.name not in {d.name for d in declared}]
    documented = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| (\d+)", PAGE, re.MULTILINE))
    assert documented == {kind.name: str(kind.policy.attempts) for kind in types}


def test_settings_that_are_named_exist() -> None:
    named = set(re.findall(r"`([A-Z]+_[A-Z_]+)(?:=[^`]*)?`", PAGE))
    assert named - set(variables_of(Settings)) == set()


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    monkeypatch.setattr(declared, "_types", dict(declared._types))
    monkeypatch.setattr(declared, "_handlers", dict(declared._handlers))
    before = list(declared_schedules)
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.+?)```", PAGE, re.DOTALL)[0], names)
    yield names
    declared_schedules[:] = before


async def test_the_example_declares_a_job_that_runs_as_described(example: dict[str, Any]) -> None:
    kind: JobType[Any] = example["send_report"]
    assert kind.handler is not None
    run = _SilentRun()
    assert await kind.handler(example["Report"]("acme"), run) == Done({"rows": 812})
    assert isinstance(await kind.handler(example["Report"]("gone"), run), Cancel)
    assert kind.policy.wait_s(2) == 60
    assert declared_schedules[-1].name == "nightly_report"


class _SilentRun(Run):
    def __init__(self) -> None:
        """Of no job."""

    def progress(self, fraction: float, note: str | None = None) -> None:
        assert 0 <= fraction <= 1
