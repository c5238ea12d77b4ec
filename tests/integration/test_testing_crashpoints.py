"""A crash point ends a real process, at the right passing, in tests only."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.support.crashpoints import (
    CRASH_POINTS,
    crash_environment,
    run_until_crash,
    used_crash_points,
)
from trunkline.crashpoint import CRASH_AT, EXIT_STATUS, TESTING, fuse_from
from trunkline.errors import TrunklineError

SAMPLE_POINTS = frozenset({"sample.before", "sample.after"})
SAMPLE = """
import atexit
from trunkline.crashpoint import crash_point

atexit.register(print, "cleaned up")
for number in range(1, 5):
    crash_point("sample.before")
    print("step", number, flush=True)
    crash_point("sample.after")
"""


@pytest.fixture
def sample(tmp_path: Path) -> list[str]:
    program = tmp_path / "sample.py"
    program.write_text(SAMPLE)
    return [sys.executable, str(program)]


async def run(command: list[str], **variables: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    stdout, stderr = await process.communicate()
    return process.returncode, stdout.decode(), stderr.decode()


@pytest.mark.parametrize(
    ("point", "nth", "steps"), [("sample.before", 1, 0), ("sample.before", 3, 2), ("sample.after", 3, 3)]
)
async def test_the_process_ends_at_the_nth_passing(
    sample: list[str], point: str, nth: int, steps: int
) -> None:
    crashed = await run_until_crash(sample, point, nth, known=SAMPLE_POINTS)
    assert crashed.stdout.splitlines() == [f"step {number}" for number in range(1, steps + 1)]
    assert f"crash point {point} reached" in crashed.stderr


async def test_a_point_that_is_not_passed_often_enough_is_an_error(sample: list[str]) -> None:
    with pytest.raises(AssertionError, match="ended with 0, not at passing 5"):
        await run_until_crash(sample, "sample.before", 5, known=SAMPLE_POINTS)


async def test_a_process_that_hangs_is_ended_and_reported(tmp_path: Path) -> None:
    program = tmp_path / "hangs.py"
    program.write_text("import threading; threading.Event().wait()")
    with pytest.raises(AssertionError, match="was not passed"):
        await run_until_crash([sys.executable, program], "sample.before", known=SAMPLE_POINTS, timeout_s=0.2)


async def test_without_the_testing_variable_it_is_ignored_loudly(sample: list[str]) -> None:
    status, stdout, stderr = await run(sample, **{CRASH_AT: "sample.before:1", TESTING: "0"})
    assert (status, stdout.count("step")) == (0, 4)
    assert "is ignored" in stderr


async def test_an_armed_process_says_so_at_once(sample: list[str]) -> None:
    status, _, stderr = await run(sample, **{CRASH_AT: "sample.after:2", TESTING: "1"})
    assert status == EXIT_STATUS
    assert stderr.splitlines()[0] == "this process will end itself at passing 2 of crash point sample.after"


@pytest.mark.parametrize("wanted", ["", "name", "name:", "name:0", "name:-1", ":1", "name:x"])
def test_a_crash_point_that_cannot_be_read_is_refused(wanted: str) -> None:
    with pytest.raises(TrunklineError, match=CRASH_AT):
        fuse_from({CRASH_AT: wanted, TESTING: "1"})


def test_an_undeclared_name_is_refused() -> None:
    with pytest.raises(AssertionError, match="no crash point is called"):
        crash_environment("typo.in_name")


def test_every_declared_point_is_used_and_every_used_one_declared() -> None:
    assert used_crash_points() == CRASH_POINTS


def test_names_are_found_in_the_source(tmp_path: Path) -> None:
    (tmp_path / "sample.py").write_text(SAMPLE)
    assert used_crash_points(tmp_path) == SAMPLE_POINTS


def test_a_computed_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sample.py").write_text("crash_point(name)")
    with pytest.raises(AssertionError, match="written out"):
        used_crash_points(tmp_path)
