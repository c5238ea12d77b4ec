"""docs/how-to/testing.md is true: its code runs as it stands, in its own folder, and its table names every fixture."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from trunkline.testing import pytest_plugin
from trunkline.testing.clock import ManualClock

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "testing.md").read_text(encoding="utf-8")


def test_the_code_of_the_page_passes_in_a_separate_project(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
    assert [name for name, _ in blocks] == ["conftest.py", "test_calls.py"]
    for name, code in blocks:
        (tmp_path / name).write_text(code, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:schemathesis"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_the_page_names_every_fixture() -> None:
    named = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    fixtures = [
        name
        for name, value in vars(pytest_plugin).items()
        if type(value).__name__ == "FixtureFunctionDefinition" and not name.startswith("_")
    ]
    assert named == fixtures


def test_the_manual_clock_moves_only_by_advance(manual_clock: ManualClock) -> None:
    before = manual_clock.now(), manual_clock.monotonic_s()
    assert (manual_clock.now(), manual_clock.monotonic_s()) == before
    manual_clock.advance(5)
    assert manual_clock.monotonic_s() == before[1] + 5


@pytest.mark.parametrize("word", ["advance", "suspend", "set_wall"])
def test_the_page_names_every_method_of_the_manual_clock(word: str) -> None:
    assert f"`{word}(" in PAGE
    assert callable(getattr(ManualClock, word))
