"""Every command of docs/reference/router-card.md, as it stands there, on a running router."""

import asyncio
import json
import re
import shlex
from argparse import ArgumentParser
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml  # type: ignore[import-untyped]
from typer.testing import CliRunner

from tests.support.bus.router_keys import RouterKeys
from tests.support.router.world import RouterWorld
from tests.support.waiting import eventually
from tests.support.world import ADMIN_KEY, SECRET_KEY
from trunkline.app import Platform
from trunkline.cli.main import app
from trunkline.settings import load_settings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "router-card.md").read_text(encoding="utf-8")
TIERS = (
    '{"gold": {"type": "exclusive", "target": 1}, "standard": {"type": "exclusive", "target": 3},'
    ' "basic": {"type": "shared", "target": 1, "max_concurrent": 3}}'
)


def commands(section: str) -> list[str]:
    """The lines of a section's shell blocks."""
    text = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    return [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]


@dataclass
class Shell:
    """What a terminal would do with a line of the card: `curl`, `redis-cli` and `trunkline`, at this test's router."""

    platform: Platform
    session: aiohttp.ClientSession
    world: RouterWorld

    async def type(self, line: str) -> Any:
        line = line.replace("$VALKEY", "redis-cli").replace("$ROUTER", self.platform.base_url)
        line = line.replace("$KEY", ADMIN_KEY)
        first, _, then = line.partition(" | xargs -n 100 ")
        tool, *words = shlex.split(first)
        found = await getattr(self, tool.replace("-", "_"))(words)
        if then:
            tool, *words = shlex.split(then)
            return await getattr(self, tool.replace("-", "_"))([*words, *found])
        return found

    async def curl(self, words: list[str]) -> Any:
        parser = ArgumentParser()
        parser.add_argument("-s", action="store_true")
        parser.add_argument("-X", default="GET")
        parser.add_argument("-H", action="append", default=[])
        parser.add_argument("-d")
        parser.add_argument("url")
        given = parser.parse_args(words)
        headers = dict(header.split(": ", 1) for header in given.H)
        async with self.session.request(given.X, given.url, headers=headers, data=given.d) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def redis_cli(self, words: list[str]) -> Any:
        prefix = self.world.keys.prefix
        words = [word if word.startswith(prefix) else word.replace("voice:", f"{prefix}:") for word in words]
        if words[0] == "--scan":
            return [key async for key in self.world.client.scan_iter(match=words[2])]
        return await self.world.client.execute_command(*words)

    async def trunkline(self, words: list[str]) -> Any:
        environ = {"TRUNKLINE_API_URL": self.platform.base_url, "TRUNKLINE_API_KEY": ADMIN_KEY}
        done = await asyncio.to_thread(CliRunner().invoke, app, words, env=environ)
        assert done.exit_code == 0, done.output + str(done.exception)
        return done.stdout


@pytest.fixture
async def shell(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Shell]:
    settings = load_settings(
        {},
        DATABASE_URL=database_url,
        REDIS_URL=redis_url,
        TRUNKLINE_DOMAIN=key_prefix,
        ROUTER_KEY_PREFIX=key_prefix,
        TIER_CONFIG=TIERS,
        TRUNKLINE_ROLES="router",
        TRUNKLINE_SECRET_KEY=SECRET_KEY,
        TRUNKLINE_ADMIN_KEY=ADMIN_KEY,
        HTTP_PORT=0,
        METRICS_PORT=0,
    )
    async with Platform.open(settings) as platform, aiohttp.ClientSession() as session:
        manager = platform.router.manager
        await eventually(lambda: manager.is_in_order, what="the manager has begun")
        shell = Shell(platform, session, RouterWorld(platform.bus, RouterKeys(key_prefix)))
        for number in range(5):
            body = {"ip": "10.0.0.1", "port": 80, "sequence": 1, "boot_id": "b"}
            await shell.type(
                f"curl -X POST $ROUTER/api/v1/pods/voice-agent-{number}/heartbeat"
                f" -H 'Authorization: Bearer $KEY' -d '{json.dumps(body)}'"
            )
        yield shell


async def test_every_api_command_of_the_card_answers_as_shown(shell: Shell) -> None:
    said = {line: await shell.type(line) for line in commands("Requests and commands")}
    answers = list(said.values())
    assert len(said) == 18
    assert answers[0]["allocation"]["source_pool"] == "pool:standard"
    assert answers[1]["pod_name"] == answers[0]["allocation"]["pod_name"]
    assert (answers[2]["is_draining"], answers[3]["is_draining"]) == (True, False)
    assert (answers[4]["pools"]["standard:assigned"], answers[4]["is_leader"]) == (3, True)
    assert answers[5]["tier"] == "gold"
    tiers = answers[16]
    assert "acme-corp" in tiers
    assert "9shines" in tiers


async def test_every_valkey_command_of_the_card_answers_as_shown(shell: Shell) -> None:
    platform = shell.platform
    await platform.router.allocator.allocate("test-call-002", "")
    said = {line: await shell.type(line) for line in commands("Look into Valkey")}
    assert len(said) == 15
    answers = list(said.values())
    assert (answers[1], answers[2]) == (1, 1)
    assert len(answers[3]) == 2, "one of the three has the call"
    assert len(answers[5]) == 3
    assert answers[6] == "gold"
    assert len(answers[7]) == 1
    assert answers[8]["source_pool"] == "pool:standard"
    assert answers[9]["status"] == "available"


def test_every_key_of_the_card_is_one_of_the_routers() -> None:
    named = re.findall(r"^\| `(voice:[^`]+)` \|", PAGE, re.MULTILINE)
    page = (ROOT / "docs" / "explanation" / "router.md").read_text(encoding="utf-8")
    assert len(named) == 8
    assert [key for key in named if f"| `{key}` |" not in page] == []


async def test_the_emergency_commands_of_the_card_reset_the_router_and_its_pods_return(shell: Shell) -> None:
    lines = commands("Emergencies")
    assert len(lines) == 5
    for line in lines[:-1]:
        await shell.type(line)
    assert await shell.type(lines[-1]) > 5, "keys were deleted"

    async def are_back() -> bool:
        """One after the other: the rebuild goes from pod to pod."""
        return len(await shell.world.client.smembers(shell.world.keys.assigned("standard"))) == 3

    await eventually(are_back, timeout_s=30, what="the pods are back in their tier")


def test_the_kubernetes_commands_of_the_card_name_what_the_manifests_have() -> None:
    files = (ROOT / "deploy" / "kubernetes").glob("*.yaml")
    documents = [doc for path in files for doc in yaml.safe_load_all(path.read_text(encoding="utf-8"))]
    there = {f"{doc['kind'].lower()}/{doc['metadata']['name']}" for doc in documents}
    labels = {f"app={doc['metadata']['labels']['app']}" for doc in documents if "labels" in doc["metadata"]}
    lines = commands("On Kubernetes")
    assert len(lines) == 5
    for line in lines:
        assert "-n voice-system" in line
        assert set(re.findall(r"-l (\S+)", line)) <= labels
        assert set(re.findall(r"\bstatefulset/\S+", line)) <= there
    assert "namespace/voice-system" in there


def test_readme_and_router_page_link_to_the_card() -> None:
    for page in ("README.md", "docs/explanation/router.md"):
        assert "router-card.md" in (ROOT / page).read_text(encoding="utf-8"), page
