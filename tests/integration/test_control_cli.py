"""`trunkline control` against the API over a real socket."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from openfeature.provider.in_memory_provider import InMemoryFlag, InMemoryProvider
from typer.testing import CliRunner, Result

from tests.support.api.http_server import serve
from tests.support.api.world import ADMIN_KEY, ApiWorld, open_api
from trunkline.cli.control import ControlCommandError, app
from trunkline.control.flags import FlagBoard, Flags

Run = Callable[..., Awaitable[Result]]


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[ApiWorld]:
    async with open_api(database_url) as world:
        yield world


@pytest.fixture
async def run(world: ApiWorld) -> AsyncIterator[Run]:
    async with serve(world.app) as url:

        async def invoke(*arguments: str, key: str = ADMIN_KEY) -> Result:
            command = ["--url", url, "--key", key, "--json", *arguments]
            return await asyncio.to_thread(CliRunner().invoke, app, command)

        yield invoke


def answer(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


async def test_stop_and_resume_turn_the_kill_switch_on_and_off(run: Run) -> None:
    assert answer(await run("stop", "kill-switch", "--reason", "wrong prompt"))["state"] == "stopped"
    [stop] = answer(await run("show"))["items"]
    assert (stop["scope"], stop["reason"], stop["expires_at"]) == ("kill_switch", "wrong prompt", None)
    resumed = answer(await run("resume", "kill-switch", "--reason", "mended", "--ramp", "0s"))
    assert resumed["state"] == "running"
    lines = answer(await run("audit", "--action", "control"))["items"]
    assert [line["reason"] for line in lines] == ["mended", "wrong prompt"]


async def test_a_subject_is_stopped_for_a_while(run: Run) -> None:
    await run("stop", "merchant", "a1", "--reason", "complaints", "--for", "2h", "--ramp", "5m")
    [stop] = answer(await run("show"))["items"]
    assert (stop["subject"], stop["ramp_s"]) == ("a1", 300)
    assert stop["expires_at"] is not None


async def test_flag_sets_changes_and_unsets_a_flag_with_audit_entries(run: Run) -> None:
    flag = answer(
        await run(
            "flag", "event_dispatch", "--on", "--percentage", "1", "--reseller", "a=on", "--merchant", "b1=off",
            "--reason", "trial",
        )
    )  # fmt: skip
    assert (flag["percentage"], flag["resellers"], flag["merchants"]) == (1, {"a": True}, {"b1": False})
    assert answer(await run("flags"))["items"] == [flag]
    change = ("--merchant", "b1=any", "--merchant", "a1=on", "--reason", "one more")
    changed = answer(await run("flag", "event_dispatch", *change))
    assert (changed["enabled"], changed["percentage"]) == (True, 1), "what is left out stays"
    assert (changed["resellers"], changed["merchants"]) == ({"a": True}, {"a1": True})
    off = answer(await run("flag", "event_dispatch", "--off", "--reason", "enough"))
    assert (off["enabled"], off["merchants"]) == (False, {"a1": True})
    assert answer(await run("unset-flag", "event_dispatch", "--reason", "over"))["is_set"] is False
    done = answer(await run("audit", "--action", "flag", "--subject", "event_dispatch"))["items"]
    assert [line["reason"] for line in done] == ["over", "enough", "one more", "trial"]
    assert answer(await run("audit", "--action", "flag", "--until", "2001-01-01"))["items"] == []
    assert answer(await run("audit", "--actor", "nobody"))["items"] == []
    assert answer(await run("alarms", "--all"))["items"] == []


async def test_free_channels_frees_dead_channels_and_audits_the_reason(database_url: str) -> None:
    async def free() -> int:
        return 64

    async with open_api(database_url, free_dead_channels=free) as world, serve(world.app) as url:
        command = ["--url", url, "--key", ADMIN_KEY, "--json"]
        freeing = [*command, "free-channels", "--reason", "no call is live"]
        assert answer(await asyncio.to_thread(CliRunner().invoke, app, freeing)) == {"freed": 64}
        lines = answer(await asyncio.to_thread(CliRunner().invoke, app, [*command, "audit"]))["items"]
        assert ("channels.freed", "no call is live") in [(line["action"], line["reason"]) for line in lines]
        refused = await world.tenant("a").post("/api/v1/channels/free", {"reason": "mine"})
        assert refused.status == 403


async def test_flags_prints_a_table_without_json(run: Run, world: ApiWorld) -> None:
    async with serve(world.app) as url:
        command = ["--url", url, "--key", ADMIN_KEY, "flags"]
        result = await asyncio.to_thread(CliRunner().invoke, app, command, env={"COLUMNS": "200"})
    assert "event_dispatch" in result.output
    assert "percentage" in result.output
    assert "platform" in result.output


def everything_off() -> InMemoryProvider:
    return InMemoryProvider({"event_dispatch": InMemoryFlag("off", {"on": True, "off": False})})


async def test_a_flag_decided_by_a_flag_service_is_shown_and_cannot_be_set(database_url: str) -> None:
    hosted = Flags(FlagBoard(), f"{__name__}:everything_off")
    async with open_api(database_url, flags=hosted) as world, serve(world.app) as url:
        command = ["--url", url, "--key", ADMIN_KEY]
        shown = await asyncio.to_thread(CliRunner().invoke, app, [*command, "flags"], env={"COLUMNS": "200"})
        assert "flag_service" in shown.output
        for change in (["flag", "event_dispatch", "--off"], ["unset-flag", "event_dispatch"]):
            tried = await asyncio.to_thread(CliRunner().invoke, app, [*command, *change, "--reason", "r"])
            assert tried.exit_code != 0
            assert "set the flag there" in str(tried.exception)


@pytest.mark.parametrize(
    "arguments",
    [
        ("stop", "kill-switch"),
        ("stop", "kill-switch", "a1", "--reason", "r"),
        ("stop", "merchant", "--reason", "r"),
        ("stop", "merchant", "a1", "--reason", "r", "--for", "a while"),
        ("stop", "planet", "earth", "--reason", "r"),
        ("flag", "event_dispatch", "--on", "--reason", "r", "--reseller", "a=perhaps"),
    ],
)
async def test_invalid_arguments_are_refused_before_a_request(run: Run, arguments: tuple[str, ...]) -> None:
    assert (await run(*arguments)).exit_code == 2
    assert answer(await run("show"))["items"] == []


async def test_a_refusal_of_the_api_is_printed_in_one_line(run: Run, world: ApiWorld) -> None:
    refused = await run("stop", "kill-switch", "--reason", "r", key=world.keys["a", "admin"])
    assert isinstance(refused.exception, ControlCommandError)
    assert "Only a key of the platform" in str(refused.exception)
    unknown = await run("stop", "merchant", "nobody/../a1", "--reason", "r")
    assert isinstance(unknown.exception, ControlCommandError)


async def test_an_unreachable_platform_is_reported_in_one_line() -> None:
    command = ["--url", "http://127.0.0.1:1", "--key", "k", "show"]
    result = await asyncio.to_thread(CliRunner().invoke, app, command)
    assert isinstance(result.exception, ControlCommandError)
