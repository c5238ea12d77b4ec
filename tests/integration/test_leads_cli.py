"""`trunkline leads`, `numbers`, `pools` and `merchants` against the API over a real socket."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.support.api.http_server import serve
from tests.support.api.world import ADMIN_KEY, ApiWorld, open_api
from trunkline.cli.main import app

Run = Callable[..., Awaitable[Result]]


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[ApiWorld]:
    async with open_api(database_url) as world:
        yield world


@pytest.fixture
async def run(world: ApiWorld) -> AsyncIterator[Run]:
    async with serve(world.app) as url:

        async def invoke(group: str, *arguments: str, table: bool = False) -> Result:
            options = ["--url", url, "--key", ADMIN_KEY, *([] if table else ["--json"])]
            return await asyncio.to_thread(
                CliRunner().invoke, app, [group, *options, *arguments], env={"COLUMNS": "200"}
            )

        yield invoke


def answer(result: Result, status: int = 0) -> Any:
    assert result.exit_code == status, result.output + str(result.exception)
    return json.loads(result.stdout)


async def test_a_lead_is_created_found_changed_and_aborted(run: Run) -> None:
    lead = answer(
        await run(
            "leads", "create", "--merchant", "a1", "--phone", "+14155550123", "--request-id", "r1",
            "--payload", '{"order": 1}', "--priority", "9", "--at", "2031-01-01T00:00:00Z",
        )
    )  # fmt: skip
    assert (lead["priority"], lead["payload"]) == (9, {"order": 1})
    found = answer(await run("leads", "list", "--merchant", "a1", "--status", "BACKLOG"))["items"]
    assert [each["id"] for each in found] == [lead["id"]]
    assert answer(await run("leads", "list", "--merchant", "a1", "--request-id", "r2"))["items"] == []
    moved = answer(await run("leads", "reschedule", lead["id"], "2032-01-01T00:00:00Z"))
    assert moved["due_at"] == "2032-01-01T00:00:00Z"
    assert (
        answer(await run("leads", "change", lead["id"], "--priority", "3", "--pool", "shared"))["pool"]
        == "shared"
    )
    assert answer(await run("leads", "dispatch-now", lead["id"]))["version"] == 4
    assert answer(await run("leads", "why", lead["id"]))["lead_id"] == lead["id"]
    done = answer(await run("leads", "abort", lead["id"], "--reason", "sold out"))
    assert done == {"aborted": 1, "cancel_requested": 0}
    story = answer(await run("leads", "show", lead["id"]))
    assert (story["outcome"], story["outcome_reason"]) == ("ABORTED", "sold out")


async def test_leads_reopen_reopens_finished_leads_by_outcome_once(run: Run, world: ApiWorld) -> None:
    for n in range(2):
        await world.make_lead("a1", f"r{n}", phone=f"+1415555012{n}")
    async with world.database.connection() as connection:
        await connection.execute(
            "UPDATE leads SET status = 'FINISHED', outcome = 'NO_AGENT', finished_at = now()"
        )
    many = ("--outcome", "NO_AGENT", "--since", "2h", "--reason", "agents were away", "--request-id", "o1")
    assert answer(await run("leads", "reopen", *many, "--dry-run"))["matched"] == 2
    assert answer(await run("leads", "reopen", *many))["reopened"] == 2
    assert answer(await run("leads", "reopen", *many))["reopened"] == 0
    [waits, _] = answer(await run("leads", "list", "--merchant", "a1"))["items"]
    refused = answer(await run("leads", "reopen", waits["id"], "--reason", "x"), status=1)
    assert (refused["reopened"], refused["refused"]) == (0, {"not_finished": 1})


@pytest.mark.parametrize(
    "line",
    [
        "{url} {key} --json leads list --merchant a1",
        "leads {url} {key} --json list --merchant a1",
        "leads list --merchant a1 {url} {key} --json",
        "--json leads {key} list {url} --merchant a1",
        "{wrong} leads list --merchant a1 {url} {key} --json",
    ],
)
async def test_connection_options_may_stand_anywhere_and_the_last_one_counts(
    world: ApiWorld, line: str
) -> None:
    """What is said furthest behind counts, and before the environment."""
    lead = await world.make_lead("a1")
    environment = {"TRUNKLINE_API_URL": "http://127.0.0.1:1", "TRUNKLINE_API_KEY": "wrong"}
    async with serve(world.app) as url:
        given = {"url": f"--url {url}", "key": f"--key={ADMIN_KEY}", "wrong": "--url http://127.0.0.1:2"}
        words = line.format(**given).split()
        result = await asyncio.to_thread(CliRunner().invoke, app, words, env=environment)
    assert [each["id"] for each in answer(result)["items"]] == [lead["id"]]


@pytest.mark.parametrize("line", ["--json config", "config --json"])
def test_json_may_stand_before_a_command_that_needs_no_platform(line: str) -> None:
    assert isinstance(json.loads(CliRunner().invoke(app, line.split()).stdout), list)


def test_every_command_about_a_platform_takes_the_options() -> None:
    for command in (["leads", "why"], ["accounts", "add", "twilio"], ["jobs", "dead"], ["control", "alarms"]):
        helped = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"})
        assert all(option in helped.stdout for option in ("--json", "--url", "--key")), helped.stdout


async def test_commands_print_tables_without_json(run: Run, world: ApiWorld) -> None:
    lead = await world.make_lead("a1", payload={"order": 1})
    shown = await run("leads", "show", lead["id"], table=True)
    assert shown.exit_code == 0
    for word in (lead["id"], "timeline", "created"):
        assert word in shown.output
    asked = await run("leads", "why", lead["id"], table=True)
    assert "gate" in asked.output
    listed = await run("numbers", "list", table=True)
    assert "+14155550100" in listed.output


async def test_the_timeline_shows_the_attempt_and_the_clock_of_each_event(run: Run, world: ApiWorld) -> None:
    called = await world.objects_of("a1")
    shown = (await run("leads", "show", called["lead_id"], table=True)).output
    table = shown[shown.index("timeline") :].replace("┃", "│").splitlines()
    head, *rows = ([cell.strip() for cell in row.split("│")] for row in table if "│" in row)
    seen = [dict(zip(head, row, strict=True)) for row in rows]
    assert {(each["what"], each["attempt_no"], each["clock"]) for each in seen} == {
        ("created", "", "ours"),
        ("intended", "1", "ours"),
        ("ended", "1", "carrier"),
    }


async def test_leads_are_aborted_by_a_filter(run: Run, world: ApiWorld) -> None:
    for number in range(3):
        await world.make_lead("a1", f"r{number}")
    await world.make_lead("a2")
    assert answer(await run("leads", "abort", "--merchant", "a1", "--reason", "over"))["aborted"] == 3
    refused = await run("leads", "abort", "--reason", "over")
    assert refused.exit_code == 1
    assert "name either lead_ids" in str(refused.exception)


CSV = "request_id,merchant_id,phone\nr1,a1,+14155550001\nr2,a1,12\nr3,a1,+14155550003\n"


async def test_leads_upload_prints_the_refused_rows(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "people.csv"
    file.write_text(CSV)
    report = answer(await run("leads", "upload", str(file)), status=1)
    assert (report["created"], report["refused"], report["results"][0]["row"]) == (2, 1, 2)
    file.write_text(CSV.replace("r2,a1,12\n", ""))
    again = answer(await run("leads", "upload", str(file)))
    assert (again["existing"], again["results"]) == (2, [])
    shown = await run("leads", "upload", str(file), table=True)
    assert (shown.exit_code, "existing" in shown.stdout) == (0, True)


async def test_an_atomic_upload_with_a_bad_row_creates_no_lead(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "people.csv"
    file.write_text(CSV)
    refused = await run("leads", "upload", "--atomic", str(file), table=True)
    assert refused.exit_code == 1
    assert "1 of 3 rows" in str(refused.exception)
    assert "phone: " in refused.stdout
    assert answer(await run("leads", "list"))["items"] == []


async def test_an_upload_of_an_unknown_file_kind_needs_format(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "people.txt"
    file.write_text('{"request_id": "r1", "merchant_id": "a1", "phone": "+14155550001"}\n')
    assert (await run("leads", "upload", str(file))).exit_code == 2
    assert answer(await run("leads", "upload", str(file), "--format", "ndjson"))["created"] == 1


async def test_numbers_are_created_changed_and_removed(run: Run) -> None:
    number = answer(
        await run("numbers", "create", "+14155550190", "--pool", "shared", "--carrier", "twilio", "--channels", "3",
                  "--pace", "0.5")
    )  # fmt: skip
    assert (number["max_channels"], number["starts_per_s"]) == (3, 0.5)
    changed = answer(await run("numbers", "change", number["id"], "--channels", "0", "--pace", "none"))
    assert (changed["max_channels"], changed["starts_per_s"]) == (0, None)
    assert (
        answer(await run("numbers", "change", number["id"], "--status", "draining"))["status"] == "draining"
    )
    assert len(answer(await run("numbers", "list", "--pool", "shared"))["items"]) == 2
    assert answer(await run("numbers", "remove", number["id"], "--drain")) == {"items": []}
    assert (await run("numbers", "show", number["id"])).exit_code == 1


@pytest.mark.parametrize("group", ["pools", "merchants"])
async def test_the_agents_field_is_shown_and_changed(run: Run, group: str) -> None:
    made = answer(await run(group, "create", "c9", "--reseller", "a"))
    assert made["agents"] == "ours"
    assert answer(await run(group, "change", "c9", "--agents", "elsewhere"))["agents"] == "elsewhere"
    assert answer(await run(group, "show", "c9"))["agents"] == "elsewhere"
    refused = await run(group, "change", "c9", "--agents", "theirs")
    assert (refused.exit_code, "; agents: " in str(refused.exception)) == (1, True)


async def test_pools_and_merchants_are_created_changed_and_removed(run: Run) -> None:
    pool = answer(
        await run("pools", "create", "own", "--reseller", "a", "--overflow", "shared", "--after", "2")
    )
    assert (pool["name"], pool["overflow_pool"], pool["overflow_after_s"]) == ("own", "shared", 2)
    assert answer(await run("pools", "change", "own", "--overflow", "none"))["overflow_pool"] is None
    merchant = answer(
        await run("merchants", "create", "c1", "--reseller", "a", "--pool", "own", "--max-concurrent", "5")
    )
    assert (merchant["default_pool"], merchant["max_concurrent"]) == ("own", 5)
    changed = answer(
        await run("merchants", "change", "c1", "--pool", "none", "--max-concurrent", "none", "--weight", "2")
    )
    assert (changed["default_pool"], changed["max_concurrent"], changed["weight"]) == (None, None, 2)
    assert "c1" in [each["id"] for each in answer(await run("merchants", "list", "--reseller", "a"))["items"]]
    for group, key in (("merchants", "c1"), ("pools", "own")):
        assert answer(await run(group, "remove", key)) == {"items": []}
        assert (await run(group, "show", key)).exit_code == 1


async def test_resellers_are_created_changed_and_removed(run: Run) -> None:
    assert answer(await run("resellers", "create", "acme"))["name"] == "acme"
    assert answer(await run("resellers", "change", "acme", "--name", "Acme Inc."))["name"] == "Acme Inc."
    assert [each["id"] for each in answer(await run("resellers", "list"))["items"]] == ["a", "acme", "b"]
    assert (await run("resellers", "remove", "a")).exit_code == 1, "merchants hang below it"
    assert answer(await run("resellers", "remove", "acme")) == {"items": []}
    assert (await run("resellers", "show", "acme")).exit_code == 1


async def test_an_invalid_option_value_is_refused_before_a_request(run: Run) -> None:
    assert (await run("merchants", "change", "a1", "--max-concurrent", "many")).exit_code == 2
    assert (await run("leads", "create", "--payload", "{oops")).exit_code == 2
