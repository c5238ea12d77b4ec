"""The peers' environment, apart from ours: `.bench-venv` for Python, `.bench-venv/node` for Node.

Versions are pinned by whoever asks, so that a benchmark says what it compared with. What is installed already is left
alone: a second run needs no network.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
HOME = ROOT / ".bench-venv"
NODE_HOME = HOME / "node"
INSTALL_TIMEOUT_S = 300


def python(*requirements: str) -> Path:
    """The interpreter of an environment that has these, as `name==version`."""
    interpreter = HOME / "bin" / "python"
    if not interpreter.exists():
        _run([_uv(), "venv", "-q", "--allow-existing", "--python", sys.executable, str(HOME)])
    _run([_uv(), "pip", "install", "-q", "--python", str(interpreter), *requirements])
    return interpreter


def node(*packages: str) -> Path:
    """The folder from which Node finds these, as `name@version`."""
    if not shutil.which("node"):
        raise RuntimeError("Node is not installed, and some peers run on it")
    missing = [package for package in packages if not _has(package)]
    if missing:
        NODE_HOME.mkdir(parents=True, exist_ok=True)
        options = ["--no-audit", "--no-fund", "--no-save", "--loglevel=error", "--prefix", str(NODE_HOME)]
        _run(["npm", "install", *options, *packages])
    return NODE_HOME


def _has(package: str) -> bool:
    name, _, version = package.rpartition("@")
    manifest = NODE_HOME / "node_modules" / name / "package.json"
    return manifest.exists() and json.loads(manifest.read_text())["version"] == version


def _uv() -> str:
    return str(Path(sys.executable).parent / "uv")


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr, timeout=INSTALL_TIMEOUT_S)
