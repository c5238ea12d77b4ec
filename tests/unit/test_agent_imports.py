"""The base install has aiohttp and nothing of the platform."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PROBE = """
import sys
from pathlib import Path
before = set(sys.modules)
import {module}
names = {{name.partition(".")[0] for name in set(sys.modules) - before}}
ours = {{".".join(name.split(".")[:2]) for name in sys.modules if name.startswith("trunkline.")}}
print(*sorted(ours))
print(*sorted(names & {{"redis", "asyncpg", "starlette", "fastapi", "msgspec", "pydantic", "structlog"}}))
"""


@pytest.mark.parametrize(
    ("module", "ours"),
    [
        # The shapes, and the module of states that they use.
        (
            "trunkline.agent.simulated",
            ["trunkline.agent", "trunkline.handlers", "trunkline.schema"],
        ),
        (
            "trunkline.client",
            ["trunkline.client", "trunkline.schema", "trunkline.states"],
        ),
    ],
)
def test_a_light_library_loads_nothing_of_the_platform(module: str, ours: list[str]) -> None:
    probe = [sys.executable, "-c", PROBE.format(module=module)]
    loaded, foreign, *_ = subprocess.run(
        probe, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert loaded.split() == ours
    assert foreign == ""


BASE_INSTALL = """
import sys
sys.modules["typer"] = None
from trunkline.cli.entry import main
main()
"""


def test_the_command_of_the_base_install_says_what_to_install() -> None:
    typed = subprocess.run([sys.executable, "-c", BASE_INSTALL], capture_output=True, text=True, check=False)
    assert typed.returncode == 1
    assert "pip install 'trunkline[server]'" in typed.stderr
    assert "Traceback" not in typed.stderr


def test_the_installed_command_is_the_one_that_can_say_so() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["scripts"] == {"trunkline": "trunkline.cli.entry:main"}


def test_the_example_is_a_whole_agent_in_under_sixty_lines_and_the_demos_pods_are_made_of_it() -> None:
    source = Path(__file__).parents[2] / "src" / "trunkline"
    example = (source / "agent" / "echo.py").read_text(encoding="utf-8")
    assert len(example.splitlines()) < 60
    assert "from trunkline.agent.echo import" in (source / "agent" / "simulated.py").read_text(
        encoding="utf-8"
    )
    assert "SimulatedPods" in (source / "cli" / "demo.py").read_text(encoding="utf-8")
