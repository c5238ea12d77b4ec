"""Accounts and numbers on the command line, against a platform and a carrier on the wire."""

import asyncio
import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.support.world import ADMIN_KEY, World, open_world
from trunkline.cli.main import app


@pytest.fixture
async def world(database_url: str, redis_url: str, key_prefix: str) -> "Any":
    nobody = {"TWILIO_ACCOUNT_SID": None, "TWILIO_AUTH_TOKEN": None}
    async with open_world(database_url, redis_url, key_prefix, pods=1, **nobody) as world:
        yield world


async def trunkline(world: World, *arguments: str) -> Result:
    """In a thread: a command runs a loop of its own."""
    environment = {"TRUNKLINE_API_URL": world.platform.base_url, "TRUNKLINE_API_KEY": ADMIN_KEY}
    return await asyncio.to_thread(CliRunner().invoke, app, list(arguments), None, environment)


async def add_twilio(world: World, token: str | None = None) -> Result:
    account = world.carrier.config.account("twilio")
    return await trunkline(
        world, "accounts", "--json", "add", "twilio", "--account-sid", account.sid, "--auth-token",
        token or account.auth_token, "--base-url", world.carrier.base_url, "--pace", "100",
    )  # fmt: skip


async def test_an_account_is_added_listed_and_removed(world: World) -> None:
    added = json.loads((await add_twilio(world)).stdout)
    assert (added["carrier"], added["secrets"], added["usable"]) == ("twilio", ["auth_token"], True)
    listed = json.loads((await trunkline(world, "accounts", "--json", "list")).stdout)
    assert [each["id"] for each in listed["items"]] == [added["id"]]
    urls = json.loads((await trunkline(world, "accounts", "--json", "urls", added["id"])).stdout)
    assert urls["inbound"].startswith(f"{world.platform.base_url}/webhooks/twilio/inbound?")
    assert (await trunkline(world, "accounts", "remove", added["id"])).exit_code == 0
    listed = json.loads((await trunkline(world, "accounts", "--json", "list")).stdout)
    assert listed["items"] == []


async def test_accounts_add_stores_no_account_that_the_carrier_refuses(world: World) -> None:
    result = await add_twilio(world, token="not the token")
    assert result.exit_code != 0
    assert "rejects these credentials" in str(result.exception)
    listed = json.loads((await trunkline(world, "accounts", "--json", "list")).stdout)
    assert listed["items"] == []


@pytest.mark.parametrize(
    ("carrier", "given"),
    [
        ("plivo", {"auth-id": "sid", "auth-token": "auth_token"}),
        ("exotel", {"sid": "sid", "api-key": "api_key", "api-token": "auth_token"}),
        ("vapi", {"api-key": "auth_token", "webhook-secret": "auth_token"}),
    ],
)
async def test_accounts_add_takes_each_carriers_own_credential_options(
    world: World, carrier: Any, given: dict[str, str]
) -> None:
    account = world.carrier.config.account(carrier)
    options = [part for name, field in given.items() for part in (f"--{name}", getattr(account, field))]
    result = await trunkline(
        world, "accounts", "add", carrier, *options, "--base-url", world.carrier.base_url
    )
    assert f"{carrier} knows it, and has 2 numbers for it." in result.stdout


async def test_numbers_import_adds_a_number_once_and_a_call_can_use_it(world: World) -> None:
    await add_twilio(world)
    first = await trunkline(world, "numbers", "--json", "import", "twilio")
    assert [(row["e164"], row["result"]) for row in json.loads(first.stdout)["items"]] == [
        ("+14155550100", "imported"),
        ("+14155550101", "imported"),
    ]
    again = await trunkline(world, "numbers", "--json", "import", "twilio", "--number", "+14155550101")
    assert [(row["e164"], row["result"]) for row in json.loads(again.stdout)["items"]] == [
        ("+14155550101", "known")
    ]
    called = await trunkline(world, "call", "+15005551000", "--json")
    assert json.loads(called.stdout)["outcome"] == "ANSWERED"
    assert len(world.carrier.ledger.dials) == 1
    busy = await trunkline(world, "call", "+15005551100")
    assert busy.exit_code == 0
    assert busy.stdout.splitlines()[-1] == "BUSY"


async def test_numbers_import_leaves_a_number_at_its_carrier_and_says_so(world: World) -> None:
    await add_twilio(world)
    await trunkline(world, "numbers", "import", "twilio", "--number", "+14155550100")
    plivo = world.carrier.config.account("plivo")
    options = ["--auth-id", plivo.sid, "--auth-token", plivo.auth_token, "--base-url", world.carrier.base_url]
    await trunkline(world, "accounts", "add", "plivo", *options)
    told = await trunkline(world, "numbers", "--json", "import", "plivo")
    assert [(row["e164"], row["result"], row["carrier"]) for row in json.loads(told.stdout)["items"]] == [
        ("+14155550100", "known", "twilio"),
        ("+14155550101", "imported", "plivo"),
    ]
    shown = await trunkline(world, "numbers", "import", "plivo")
    assert "another account dials from stay with it" in shown.stdout


async def test_numbers_import_refuses_an_unknown_account(world: World) -> None:
    result = await trunkline(world, "numbers", "import", "plivo")
    assert "no plivo account named 'default'" in str(result.exception)
