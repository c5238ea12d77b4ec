"""`trunkline campaigns` against the API over a real socket."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.support.api.http_server import serve
from tests.support.api.world import ADMIN_KEY, open_api
from trunkline.cli.main import app

Run = Callable[..., Awaitable[Result]]


@pytest.fixture
async def run(database_url: str) -> AsyncIterator[Run]:
    async with open_api(database_url) as world, serve(world.app) as url:

        async def invoke(*arguments: str) -> Result:
            options = ["--url", url, "--key", ADMIN_KEY, "--json"]
            return await asyncio.to_thread(CliRunner().invoke, app, ["campaigns", *options, *arguments])

        yield invoke


def answer(result: Result, status: int = 0) -> Any:
    assert result.exit_code == status, result.output + str(result.exception)
    return json.loads(result.stdout)


async def test_a_campaign_from_its_draft_to_its_results(run: Run, tmp_path: Path) -> None:
    policy, people = tmp_path / "policy.json", tmp_path / "people.csv"
    policy.write_text('{"starts_per_s": 2}')
    people.write_bytes("Mobile;Name\n+14155550101;René\n12;x\n".encode("latin-1"))
    made = answer(await run("create", "--name", "May", "--merchant", "a1", "--policy", str(policy)))
    assert (made["status"], made["policy"]) == ("DRAFT", {"starts_per_s": 2.0})
    id_ = made["id"]
    taken = await run(
        "upload",
        id_,
        str(people),
        "--map",
        "phone:Mobile",
        "--map",
        "payload.name:Name",
        "--encoding",
        "latin-1",
    )
    report = answer(taken, 1)
    assert (report["created"], report["refused"], report["results"][0]["row"]) == (1, 1, 2)
    assert "people.csv" in taken.stderr, "a bar, beside what a program reads"
    assert answer(await run("change", id_, "--priority", "9"))["priority"] == 9
    assert answer(await run("start", id_))["status"] == "RUNNING"
    assert answer(await run("pause", id_, "--reason", "lunch"))["status"] == "PAUSED"
    assert answer(await run("resume", id_))["status"] == "RUNNING"
    assert answer(await run("progress", id_))["waiting"] == 1
    [listed] = answer(await run("list", "--status", "RUNNING"))["items"]
    assert (listed["id"], listed["finished"], listed["leads"]) == (id_, 0, 1)
    results = await run("results", id_)
    assert results.exit_code == 0
    assert "+14155550101" in results.stdout.splitlines()[1]
    assert answer(await run("stop", id_, "--hang-up"))["status"] == "STOPPING"


async def test_a_policy_that_is_no_json_and_an_unknown_campaign_are_said_in_one_line(
    run: Run, tmp_path: Path
) -> None:
    broken = tmp_path / "policy.json"
    broken.write_text("{")
    result = await run("create", "--name", "x", "--merchant", "a1", "--policy", str(broken))
    assert "is not JSON" in str(result.exception)
    result = await run("results", "01a1de62-2432-7601-a478-c9ca0201884e")
    assert "no such campaign" in str(result.exception).lower()


async def test_a_campaign_may_overdial_beside_what_its_policy_says(run: Run, tmp_path: Path) -> None:
    policy = tmp_path / "policy.json"
    policy.write_text('{"packs": ["us-tcpa"]}')
    options = ("--merchant", "a1", "--policy", str(policy), "--abandon-max", "0.03")
    made = answer(await run("create", "--name", "May", *options))
    assert made["policy"] == {"packs": ["us-tcpa"], "abandon_max": 0.03}
    assert answer(await run("progress", made["id"]))["abandonment"]["overdialling"] == "on"
    assert (await run("create", "--name", "x", "--merchant", "a1", "--abandon-max", "3")).exit_code == 2
