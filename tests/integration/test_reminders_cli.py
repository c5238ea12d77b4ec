"""`trunkline reminders` against the API over a real socket."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.support.api.http_server import serve
from tests.support.api.world import ADMIN_KEY, open_api
from trunkline.cli.main import app

Run = Callable[..., Awaitable[Any]]


@pytest.fixture
async def run(database_url: str) -> AsyncIterator[Run]:
    async with open_api(database_url) as world, serve(world.app) as url:

        async def invoke(*arguments: str) -> Any:
            options = ["--url", url, "--key", ADMIN_KEY, "--json"]
            result = await asyncio.to_thread(CliRunner().invoke, app, ["reminders", *options, *arguments])
            assert result.exit_code == 0, result.output + str(result.exception)
            return json.loads(result.stdout)

        yield invoke


async def test_a_reminder_from_its_making_to_its_end(run: Run) -> None:
    made = await run(
        "create", "--merchant", "a1", "--phone", "+14155550123", "--at", "2090-01-01T09:00", "--timezone", "UTC",
        "--rrule", "FREQ=DAILY", "--carrier", "twilio", "--message", "Hello", "--payload", '{"a": 1}',
        "--late-minutes", "5",
    )  # fmt: skip
    assert (made["status"], made["payload"], made["late_s"]) == ("ACTIVE", {"a": 1}, 300)
    assert [each["id"] for each in (await run("list", "--status", "ACTIVE"))["items"]] == [made["id"]]
    one, two = (await run("upcoming", made["id"], "--limit", "2"))["items"]
    assert (one["wall_at"], two["wall_at"]) == ("2090-01-01T09:00:00", "2090-01-02T09:00:00")
    assert (await run("skip", made["id"]))["next_wall"] == two["wall_at"]
    assert (await run("pause", made["id"]))["status"] == "PAUSED"
    assert (await run("resume", made["id"]))["status"] == "ACTIVE"
    await run("next", made["id"])
    shown = await run("show", made["id"])
    assert [each["state"] for each in shown["occurrences"]] == ["SCHEDULED", "SKIPPED"]
    assert (await run("cancel", made["id"]))["ended_reason"] == "cancelled"
