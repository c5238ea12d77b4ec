"""Generators that others use make clients from the OpenAPI document, without a warning."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from tests.support.world import ADMIN_KEY, World

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "tools" / "client-generators"
PYTHON = ROOT / ".generators-venv" / "bin"
NODE = TOOLS / "node_modules" / ".bin"

needs_python = pytest.mark.skipif(
    not (PYTHON / "openapi-python-client").exists(), reason="openapi-python-client: `make generators`"
)
needs_node = pytest.mark.skipif(not (NODE / "openapi-ts").exists(), reason="openapi-ts: `make generators`")


async def run(*command: str | Path, **environment: str) -> str:
    """What it printed. An exit code other than 0 fails the test."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=os.environ | environment,
    )
    printed = (await process.communicate())[0].decode()
    assert process.returncode == 0, printed
    return printed


@needs_python
async def test_a_generated_python_client_creates_and_reads_a_pool(world: World, tmp_path: Path) -> None:
    url, package = world.platform.base_url, tmp_path / "trunkline_client"
    printed = await run(
        PYTHON / "openapi-python-client",
        *("generate", "--meta", "none", "--fail-on-warning", "--url", f"{url}/openapi.json"),
        *("--config", TOOLS / "openapi-python-client.yaml", "--output-path", package),
        PATH=f"{PYTHON}:{os.environ['PATH']}",
    )
    assert "warning" not in printed.lower()
    await run(PYTHON / "python", TOOLS / "round_trip.py", url, ADMIN_KEY, PYTHONPATH=str(tmp_path))


@needs_node
async def test_a_generated_typescript_client_has_sound_types(world: World, tmp_path: Path) -> None:
    document = f"{world.platform.base_url}/openapi.json"
    printed = await run(NODE / "openapi-ts", "-i", document, "-o", tmp_path / "generated", NO_COLOR="1")
    assert "warn" not in printed.lower()
    assert "⚠" not in printed
    for name in ("round_trip.ts", "tsconfig.json"):
        shutil.copy(TOOLS / name, tmp_path)
    assert await run(NODE / "tsc", "-p", tmp_path) == ""
