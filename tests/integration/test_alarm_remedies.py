"""An alarm's remedy can be carried out: every command, route and setting that it names works."""

import asyncio
import re
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable
from uuid import UUID

import pytest
from typer.testing import CliRunner, Result

from tests.support.api.http_server import serve
from tests.support.api.world import ADMIN_KEY, ApiWorld, open_api
from trunkline.cli.main import app
from trunkline.control.alarms import DEFINITIONS
from trunkline.model import new_id
from trunkline.settings import load_settings
from trunkline.store.database import Connection

Run = Callable[[str], Awaitable[Result]]

QUOTED = re.compile(r"`([^`]+)`")
# What the words of a command stand for, so that it can be carried out.
STANDS_FOR = {
    "WHY": "mended",
    "MERCHANT": "a1",
    "KIND": "orders",
    "POD": "agent-1",
    "KEY": "order-1",
    "NUMBER": "1",
    "OLD": "orders",
    "NEW": "purchases",
}
# These are about one thing that is not there in this test: that it is not there is an answer, a wrong line is none.
NAMES_ONE = frozenset({"KEY", "OLD"})
# These open the engines, the router or a terminal of their own; that they exist is all that is asked here.
NOT_HERE = ("doctor", "restore-check", "router", "pods")


# The carrier has been asked, and has no such call.
ASKED = """
INSERT INTO attempts (id, lead_id, attempt_no, reseller_id, merchant_id, number_id, channel_no, carrier, account,
                      to_phone, from_phone, dialer, state, holds_channel)
SELECT $1, l.id, 1, l.reseller_id, l.merchant_id, $3, 1, 'twilio', 'default', l.phone, '+14155550100', 'test',
       'absent', false
FROM leads AS l WHERE l.id = $2
"""


def remedies() -> list[tuple[str, str]]:
    """Each alarm with each thing that its action names in backquotes."""
    return [(each.name, words) for each in DEFINITIONS.values() for words in QUOTED.findall(each.action)]


COMMANDS = [(name, words) for name, words in remedies() if words.startswith("trunkline ")]
ROUTES = [(name, words) for name, words in remedies() if re.match(r"(GET|POST|PUT|PATCH|DELETE) /", words)]


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[ApiWorld]:
    async def free_none() -> int:
        return 0

    async with open_api(database_url, free_dead_channels=free_none) as world:
        yield world


@pytest.fixture
async def run(world: ApiWorld) -> AsyncIterator[Run]:
    async with serve(world.app) as url:

        async def invoke(command: str) -> Result:
            group, *rest = shlex.split(command)[1:]
            options = ["--url", url, "--key", ADMIN_KEY]
            return await asyncio.to_thread(CliRunner().invoke, app, [group, *options, *rest])

        yield invoke


async def ended(conn: Connection, lead_id: str, outcome: str) -> None:
    await conn.execute(
        "UPDATE leads SET status = 'FINISHED', outcome = $2, finished_at = now() WHERE id = $1",
        UUID(lead_id),
        outcome,
    )


@pytest.mark.parametrize(("alarm", "words"), COMMANDS)
async def test_every_command_of_a_remedy_can_be_carried_out(
    run: Run, world: ApiWorld, alarm: str, words: str
) -> None:
    lead = await world.make_lead("a1", "r1")
    await world.make_lead("a1", "r2", phone="+14155550124")
    known = {**STANDS_FOR, "LEAD": str(lead["id"]), "JOB": str(new_id())}
    async with world.database.connection() as conn:
        await conn.execute(
            "INSERT INTO job_dead (id, created_at, died_at, fence, priority, attempt_count, max_attempts, job_type,"
            " payload, last_error_code, last_error_message)"
            " VALUES ($1, now(), now(), 1, 50, 3, 3, 'deliver_webhook', '{}', 'timeout', 'no answer')",
            UUID(known["JOB"]),
        )
        await ended(conn, str(lead["id"]), "UNKNOWN" if "UNKNOWN" in words else "NO_AGENT")
        if "UNKNOWN" in words:
            await conn.execute(ASKED, new_id(), UUID(str(lead["id"])), new_id())
    command = " ".join(known.get(word, word) for word in words.split())
    unknown = [word for word in command.split() if re.fullmatch(r"[A-Z][A-Z_]{2,}", word)]
    assert set(unknown) <= {"UNKNOWN", "NO_AGENT"}, f"say in this test what {unknown} stand for"
    if command.split()[1] in NOT_HERE:
        helped = CliRunner().invoke(app, [*command.split()[1:3], "--help"])
        assert helped.exit_code == 0, helped.output
        return
    done = await run(command)
    if NAMES_ONE & set(words.split()) and done.exit_code == 1:
        assert "There is no such" in f"{done.output}{done.exception}", (
            f"{command}: {done.output}{done.exception}"
        )
        return
    assert done.exit_code == 0, f"{command}: {done.output}{done.exception}"
    if "reopen" in command:
        async with world.database.connection() as conn:
            reopened = await conn.fetchval("SELECT status FROM leads WHERE id = $1", UUID(str(lead["id"])))
        assert reopened == "BACKLOG"


@pytest.mark.parametrize(("alarm", "words"), ROUTES)
async def test_every_route_of_a_remedy_exists(world: ApiWorld, alarm: str, words: str) -> None:
    method, path = words.split()[:2]
    known = {re.sub(r"{[^}]+}", "{}", each) for each, item in _paths(world).items() if method.lower() in item}
    assert re.sub(r"{[^}]+}", "{}", path) in known


def test_every_setting_of_a_remedy_exists() -> None:
    known = {row.name for row in load_settings().describe()}
    named = [
        word
        for each in DEFINITIONS.values()
        for word in re.findall(r"\b[A-Z]{3,}(?:_[A-Z]+)+\b", each.action)
    ]
    assert set(named) - known <= {"NO_AGENT"}
    assert COMMANDS, "and there are commands to try"


def _paths(world: ApiWorld) -> dict[str, dict[str, object]]:
    paths: dict[str, dict[str, object]] = world.app.openapi()["paths"]
    return paths
