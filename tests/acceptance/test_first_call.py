"""docs/tutorial/first-call.md as a new user walks it: every command of the page, in a fresh folder, with its output."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.waiting import eventually

PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "first-call.md"
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# The ports that the page names; the walk takes others, which are free.
PORTS = ("8080", "9290", "8765")
TIMEOUT_S = 90


@dataclass
class Walk:
    folder: Path
    ports: dict[str, str]
    running: "list[subprocess.Popen[str]]" = field(default_factory=list)

    def text(self, written: str) -> str:
        """As the page has it, with the ports of this walk."""
        for port, free in self.ports.items():
            written = written.replace(f":{port}", f":{free}").replace(f" {port}", f" {free}")
            written = written.replace(f"={port}", f"={free}")
        return written

    @property
    def environment(self) -> dict[str, str]:
        bin_folder = str(Path(sys.executable).parent)
        kept = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
        return {
            **kept,
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "HTTP_PORT": self.ports["8080"],
            "METRICS_PORT": "0",
            "TRUNKLINE_API_URL": f"http://127.0.0.1:{self.ports['8080']}",
            "PYTHONUNBUFFERED": "1",
        }

    def start(self, command: str, expected: list[str]) -> None:
        """Leave it running, once it has said what the page says it says."""
        log = self.folder / f"running-{len(self.running)}.log"
        with log.open("w") as out:
            self.running.append(
                subprocess.Popen(
                    ["bash", "-c", command],
                    cwd=self.folder,
                    env=self.environment,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    text=True,
                    start_new_session=True,
                )
            )
        until(lambda: all(said(line, log.read_text()) for line in expected), f"{command}: {expected}")

    def run(self, command: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )


def until(condition: Callable[[], bool], what: str) -> None:
    asyncio.run(eventually(condition, timeout_s=TIMEOUT_S, what=what))


def said(expected: str, output: str) -> bool:
    """A line of the page: `…` stands for anything, and blanks for any blanks."""
    parts = [re.escape(part.strip()) for part in expected.split("…")]
    pattern = ".*".join(re.sub(r"(\\\s)+", r"\\s+", part) for part in parts)
    return any(re.search(pattern, line) for line in output.splitlines())


def commands(block: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a block with the lines that it prints."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *printed = part.strip().splitlines()
        yield command, printed


@contextmanager
def walking(folder: Path) -> Iterator[Walk]:
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in PORTS]
    ports = {port: str(sock.getsockname()[1]) for port, sock in zip(PORTS, taken, strict=True)}
    for sock in taken:
        sock.close()
    walk = Walk(folder, ports)
    try:
        yield walk
    finally:
        for process in reversed(walk.running):
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def test_every_command_of_the_first_call_page_prints_what_it_shows(tmp_path: Path) -> None:
    walked: list[str] = []
    with walking(tmp_path) as walk:
        for language, info, written in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
            text, info = walk.text(written), info.strip()
            if language == "python" and info.startswith("file="):
                (tmp_path / info.removeprefix("file=")).write_text(text, encoding="utf-8")
            for command, printed in commands(text) if language == "console" else ():
                if info == "background":
                    walk.start(command, printed)
                elif info == "eventually":
                    until(lambda: all(said(line, walk.run(command).stdout) for line in printed), command)  # noqa: B023
                else:
                    result = walk.run(command)
                    missing = [line for line in printed if not said(line, result.stdout)]
                    assert not missing, f"{command}\n{result.stdout}\n{result.stderr}"
                walked.append(command.partition("trunkline ")[2].partition(" ")[0] or "agent")
    assert walked == ["simulator", "up", "agent", "accounts", "numbers", "doctor", "call", "call", "leads"]


def test_every_problem_on_the_page_is_one_that_doctor_reports() -> None:
    source = (Path(__file__).parents[2] / "src/trunkline/cli/doctor.py").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == 6
    for row in rows:
        for part in re.split(r"…|404|PUBLIC_BASE_URL: ", row):
            assert part.strip(" ,") in source, row
