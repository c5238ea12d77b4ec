"""A loop of the leader: its duty cannot be run without the check for leadership."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trunkline.loops.base import Loop
from trunkline.loops.leader import LeaderLoop

ROOT = Path(__file__).parents[2]


class Election:
    def __init__(self, term: int | None):
        self.term = term


class Duty(LeaderLoop):
    name = "duty"

    async def run_as_leader(self, term: int) -> int:
        return term


async def test_a_leader_loop_runs_only_in_a_process_with_a_term() -> None:
    assert await Duty(Election(7), 1.0).run_once() == 7
    assert await Duty(Election(None), 1.0).run_once() == 0


async def test_a_leader_loop_without_run_as_leader_cannot_be_made() -> None:
    class Unwritten(LeaderLoop):
        name = "unwritten"

    with pytest.raises(TypeError, match="run_as_leader"):
        Unwritten(Election(1), 1.0)  # type: ignore[abstract]


def test_a_leader_loop_that_overrides_run_once_is_refused_at_class_creation() -> None:
    with pytest.raises(TypeError, match="write run_as_leader instead"):

        class Replaced(LeaderLoop):
            name = "replaced"

            async def run_once(self) -> int:  # type: ignore[misc]
                return 1


def test_a_mixin_cannot_override_run_once_of_a_leader_loop() -> None:
    class Mixin(Loop):
        async def run_once(self) -> int:
            return 1

    with pytest.raises(TypeError, match="write run_as_leader instead"):

        class Mixed(Mixin, LeaderLoop):  # type: ignore[misc]
            name = "mixed"


LETTER = """
from trunkline.loops.leader import LeaderLoop

class ToTheLetter(LeaderLoop):
    name = "letter"

    async def run_once(self) -> int:
        return 1
"""


def test_mypy_refuses_a_leader_loop_that_overrides_run_once(tmp_path: Path) -> None:
    path = tmp_path / "letter.py"
    path.write_text(LETTER, encoding="utf-8")
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--follow-imports=silent", "--no-incremental", str(path)],
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert 'Cannot override final attribute "run_once"' in found.stdout, found.stdout + found.stderr
