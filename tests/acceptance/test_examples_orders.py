"""The two shops of `examples/`, from their READMEs alone: every command in them is run as it stands."""

import asyncio
import json
import os
import re
import signal
import sys
import tomllib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.support.waiting import eventually
from trunkline.embedded.ports import free_port

# Two or three interpreters start and import frameworks, beside whatever else the machine does.
pytestmark = pytest.mark.timeout(600)
PATIENCE_S = 150

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """A shell without job control has what it runs in the background ignore SIGINT, and children inherit that. In a
    terminal of one's own it ends a program."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def blocks(readme: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", readme, re.DOTALL)


async def run(command: str, env: Mapping[str, str]) -> str:
    process = await asyncio.create_subprocess_exec(
        "bash", "-ec", command, cwd=ROOT, env=env, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, command
    return output.decode()


@asynccontextmanager
async def running(command: str, env: Mapping[str, str]) -> AsyncIterator[None]:
    """As in a terminal of its own, until Ctrl-C."""
    process = await asyncio.create_subprocess_exec("bash", "-c", f"exec {command}", cwd=ROOT, env=env)
    try:
        yield
        assert process.returncode is None, f"{command} ended by itself"
        process.send_signal(signal.SIGINT)
        await asyncio.wait_for(process.wait(), PATIENCE_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def follow(readme: str, env: dict[str, str]) -> tuple[Any, Any]:
    """Do what it says; what the last command shows, once it is what the README shows."""
    [install, export, *commands] = blocks(readme, "sh")
    extras = set(re.findall(r"\[([\w,]+)\]'", install)[0].split(","))
    assert install.startswith("pip install ")
    assert extras <= EXTRAS.keys()
    assert set(re.findall(r"(\w+_URL)=", export)) <= env.keys()
    [shown] = blocks(readme, "json")
    async with AsyncExitStack() as stack:
        *before, place, look = commands
        for command in before:
            if "migrate" in command:
                await run(command, env)
            else:
                await stack.enter_async_context(running(command.strip(), env))
        await eventually(lambda: answers(int(env["PORT"])), timeout_s=PATIENCE_S, what="the web application")
        placed = await run(place, env)
        seen: list[Any] = []

        async def is_shipped() -> bool:
            seen.append(json.loads(await run(look, env)))
            return settled(seen[-1])

        await eventually(is_shipped, timeout_s=PATIENCE_S, what="an order that is shipped")
        assert "tea" not in placed
        assert "There is no unicorn" in placed
    return seen[-1], json.loads(shown)


async def answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def settled(orders: list[dict[str, Any]]) -> bool:
    """Shipped, and told if it is told."""
    [order] = orders
    return order["status"] == "shipped" and "shipped" in "".join(order.get("told", ["shipped"]))


@pytest.fixture
def env(empty_database_url: str, redis_url: str) -> dict[str, str]:
    binaries = Path(sys.executable).parent
    return {
        **os.environ,
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "DATABASE_URL": empty_database_url,
        "REDIS_URL": redis_url,
        "PORT": str(free_port()),
    }


async def there_is(url: str, statement: str) -> list[Any]:
    connection = await asyncpg.connect(url)
    try:
        return [row[0] for row in await connection.fetch(statement)]
    finally:
        await connection.close()


async def test_every_command_of_the_fastapi_shops_readme_runs(env: dict[str, str]) -> None:
    seen, shown = await follow((ROOT / "examples/fastapi_orders/README.md").read_text(), env)
    told = " and ".join(seen[0].pop("told"))
    assert [told] == shown[0].pop("told")
    assert seen == shown
    url = env["DATABASE_URL"]
    assert await there_is(url, "SELECT unique_key FROM trunkline.job_history") == ["1"]
    assert await there_is(url, "SELECT count(*) FROM trunkline.job_outbox") == [0]
    assert await there_is(url, "SELECT key FROM trunkline.mailboxes") == ["1"]


async def test_every_command_of_the_django_shops_readme_runs(env: dict[str, str]) -> None:
    seen, shown = await follow((ROOT / "examples/django_orders/README.md").read_text(), env)
    assert seen == shown
    url = env["DATABASE_URL"]
    assert await there_is(url, "SELECT unique_key FROM trunkline.job_history") == ["1"]
    assert await there_is(url, "SELECT count(*) FROM trunkline.job_outbox") == [0]
