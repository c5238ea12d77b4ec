"""Accounts in Postgres: sealed, changed, rotated, and found by running processes."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from tests.support.api.world import ApiWorld, expect, open_api
from trunkline.control.raising import raise_alarm
from trunkline.store import cooldowns
from trunkline.store.cooldowns import CarrierRefused, Subject
from trunkline.telephony.accounts import KNOWN_IN_S, AccountService, AccountsRefresh, Vault
from trunkline.telephony.callbacks import CallbackKeys, verify_callback
from trunkline.telephony.carrier import CallbackTag
from trunkline.telephony.carrier_registry import CarrierConfigError
from trunkline.telephony.directory import CarrierDirectory

TWILIO = {"account_sid": "AC1", "auth_token": "the-first-token"}
EXAMPLES: dict[str, dict[str, str]] = {
    "twilio": TWILIO,
    "plivo": {"auth_id": "MA1", "auth_token": "plivo-token"},
    "exotel": {"sid": "exo", "api_key": "exo-key", "api_token": "exo-token", "app_id": "1"},
    "vapi": {"api_key": "vapi-key", "webhook_secret": "vapi-secret", "assistant_id": "a1"},
}


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[ApiWorld]:
    async with open_api(database_url) as world:
        yield world


def desk_of(world: ApiWorld) -> AccountService:
    desk = world.app.state.api.deps.accounts
    assert isinstance(desk, AccountService)
    return desk


def another_process(world: ApiWorld, *secrets: str) -> AccountService:
    """The same database with a directory of its own, and perhaps other keys."""
    desk = replace(desk_of(world), directory=CarrierDirectory({}))
    return replace(desk, vault=Vault.from_secrets(secrets)) if secrets else desk


async def add(world: ApiWorld, carrier: str = "twilio", name: str = "acme", **more: Any) -> dict[str, Any]:
    body = {"carrier": carrier, "name": name, "credentials": EXAMPLES[carrier], **more}
    return expect(await world.admin.post("/api/v1/accounts", body), 201)


async def sealed(world: ApiWorld) -> list[bytes]:
    async with world.database.connection() as conn:
        return [row["credentials"] for row in await conn.fetch("SELECT credentials FROM carrier_accounts")]


@pytest.mark.parametrize("carrier", EXAMPLES)
async def test_an_account_shows_its_names_and_never_a_secret(world: ApiWorld, carrier: str) -> None:
    made = await add(world, carrier)
    answers = [
        await world.admin.get(f"/api/v1/accounts/{made['id']}"),
        await world.admin.get("/api/v1/accounts"),
        await world.admin.patch(f"/api/v1/accounts/{made['id']}", {"starts_per_s": 2}),
        await world.admin.get("/api/v1/audit"),
    ]
    kept = b"".join(await sealed(world))
    secrets = [EXAMPLES[carrier][name] for name in made["secrets"]]
    assert secrets
    for secret in secrets:
        assert all(secret.encode() not in answer.body for answer in answers)
        assert secret.encode() not in kept
        assert secret not in str(made)
    assert set(made["secrets"]) | set(made["credentials"]) == set(EXAMPLES[carrier])


async def test_an_account_is_usable_at_once_here_and_after_a_refresh_in_other_processes(
    world: ApiWorld,
) -> None:
    elsewhere = another_process(world)
    made = await add(world)
    assert desk_of(world).directory.get("twilio", "acme").name == "twilio"
    with pytest.raises(CarrierConfigError):
        elsewhere.directory.get("twilio", "acme")
    await AccountsRefresh(elsewhere).run_once()
    old = elsewhere.directory.get("twilio", "acme")
    expect(
        await world.admin.patch(f"/api/v1/accounts/{made['id']}", {"credentials": {"auth_token": "other"}}),
        200,
    )
    await AccountsRefresh(elsewhere).run_once()
    assert elsewhere.directory.get("twilio", "acme") is not old
    expect(await world.admin.patch(f"/api/v1/accounts/{made['id']}", {"status": "disabled"}), 200)
    await AccountsRefresh(elsewhere).run_once()
    with pytest.raises(CarrierConfigError):
        elsewhere.directory.get("twilio", "acme")
    await elsewhere.directory.aclose()


async def test_a_replaced_token_is_honoured_until_the_next_change(world: ApiWorld) -> None:
    made = await add(world)
    path = f"/api/v1/accounts/{made['id']}"

    async def known() -> dict[str, str]:
        async with world.database.connection() as conn:
            row = await conn.fetchrow("SELECT carrier, name, credentials FROM carrier_accounts")
        assert row is not None
        opened = desk_of(world).vault.open(row["carrier"], row["name"], row["credentials"])
        return dict(opened.credentials)  # type: ignore[union-attr]

    expect(await world.admin.patch(path, {"credentials": {"auth_token": "the-second-token"}}), 200)
    assert await known() == {
        "account_sid": "AC1",
        "auth_token": "the-second-token",
        "previous_auth_token": "the-first-token",
    }
    expect(await world.admin.patch(path, {"credentials": {"auth_token": "the-third-token"}}), 200)
    assert (await known())["previous_auth_token"] == "the-second-token"
    expect(await world.admin.patch(path, {"credentials": {"previous_auth_token": ""}}), 200)
    assert "previous_auth_token" not in await known()


async def test_rotating_the_key_seals_everything_anew_and_then_the_old_one_is_not_needed(
    world: ApiWorld,
) -> None:
    await add(world)
    (before,) = await sealed(world)
    old = "secret of the tests" * 2
    rotating = another_process(world, "the new secret", old)
    assert await rotating.refresh() == 1
    (after,) = await sealed(world)
    assert after != before
    assert await rotating.refresh() == 1
    assert await sealed(world) == [after]
    rotated = another_process(world, "the new secret")
    assert await rotated.refresh() == 1
    assert await another_process(world, "a third one").refresh() == 0
    for desk in (rotating, rotated):
        await desk.directory.aclose()


async def test_an_account_that_cannot_be_unsealed_is_shown_as_such_and_can_be_replaced(
    world: ApiWorld,
) -> None:
    made = await add(world)
    other = another_process(world, "a key of another installation")
    async with world.database.connection() as conn:
        await conn.execute(
            "UPDATE carrier_accounts SET credentials = $1", other.vault.seal("twilio", "acme", TWILIO)
        )
    path = f"/api/v1/accounts/{made['id']}"
    shown = expect(await world.admin.get(path), 200)
    assert (shown["usable"], shown["credentials"], shown["secrets"]) == (False, {}, [])
    assert (await world.admin.get(f"{path}/urls")).json()["code"] == "account_not_usable"
    partly = await world.admin.patch(path, {"credentials": {"auth_token": "new"}})
    assert (partly.status, partly.json()["fields"][0]["field"]) == (422, "credentials.account_sid")
    assert expect(await world.admin.patch(path, {"credentials": TWILIO}), 200)["usable"]


@pytest.mark.parametrize(
    ("credentials", "field"),
    [
        ({"account_sid": "AC1"}, "credentials.auth_token"),
        ({**TWILIO, "password": "x"}, "credentials.password"),
        ({**TWILIO, "account_sid": ""}, "credentials.account_sid"),
    ],
)
async def test_a_missing_or_unknown_credential_is_named(
    world: ApiWorld, credentials: dict[str, str], field: str
) -> None:
    answer = await world.admin.post("/api/v1/accounts", {"carrier": "twilio", "credentials": credentials})
    assert answer.status == 422
    assert [problem["field"] for problem in answer.json()["fields"]] == [field]
    assert await sealed(world) == []


async def test_an_unknown_time_zone_of_an_account_is_refused(world: ApiWorld) -> None:
    body = {"carrier": "exotel", "credentials": EXAMPLES["exotel"] | {"time_zone": "Mars/Olympus"}}
    answer = await world.admin.post("/api/v1/accounts", body)
    assert (answer.status, "time zone" in answer.json()["fields"][0]["error"]) == (422, True)


async def test_an_account_name_is_unique_per_carrier(world: ApiWorld) -> None:
    await add(world, "twilio", "main")
    await add(world, "plivo", "main")
    body = {"carrier": "twilio", "name": "main", "credentials": TWILIO}
    assert (await world.admin.post("/api/v1/accounts", body)).json()["code"] == "already_exists"


async def test_an_account_that_a_number_uses_cannot_be_deleted(world: ApiWorld) -> None:
    made = await add(world)
    number = {
        "e164": "+14155550199",
        "pool": "a1-pool",
        "carrier": "twilio",
        "account": "acme",
        "max_channels": 1,
    }
    number_id = expect(await world.admin.post("/api/v1/numbers", number), 201)["id"]
    refused = await world.admin.delete(f"/api/v1/accounts/{made['id']}")
    assert (refused.status, refused.json()["code"]) == (409, "in_use")
    assert (await world.admin.delete(f"/api/v1/numbers/{number_id}")).status == 204
    assert (await world.admin.delete(f"/api/v1/accounts/{made['id']}")).status == 204
    with pytest.raises(CarrierConfigError):
        desk_of(world).directory.get("twilio", "acme")


@pytest.mark.parametrize("carrier", EXAMPLES)
async def test_an_accounts_webhook_urls_verify_for_that_account_only(world: ApiWorld, carrier: str) -> None:
    made = await add(world, carrier)
    urls = expect(await world.admin.get(f"/api/v1/accounts/{made['id']}/urls"), 200)
    keys = CallbackKeys.from_secrets(["secret of the tests" * 2])
    assert verify_callback(urls["inbound"], keys) == CallbackTag(carrier, "inbound", None, "acme")
    assert verify_callback(urls["status"], keys) == CallbackTag(carrier, "status", None, "acme")
    assert ("@" in urls["inbound"]) == (carrier == "exotel")
    other = urls["inbound"].replace("account=acme", "account=other")
    assert not isinstance(verify_callback(other, keys), CallbackTag)


async def test_new_credentials_end_a_cooldown_and_begin_with_a_probe(world: ApiWorld) -> None:
    """Not before every process has read them: a probe with the old ones would be refused again."""
    made = await add(world)
    account = ("twilio", "acme")
    subject = Subject("account", "twilio/acme")
    async with world.database.connection() as conn:
        await cooldowns.note_accepted(conn, [account], [])
        await cooldowns.begin(conn, [CarrierRefused(subject, account, "20003")], first_wait_s=300)
        await raise_alarm(conn, "carrier_refuses", "twilio/acme")
        assert len(await cooldowns.active(conn, account)) == 1
    path = f"/api/v1/accounts/{made['id']}"
    expect(await world.admin.patch(path, {"starts_per_s": 2}), 200)
    async with world.database.connection() as conn:
        assert len(await cooldowns.active(conn, account)) == 1, "a pace is no remedy"
    expect(await world.admin.patch(path, {"credentials": {"auth_token": "other"}}), 200)
    async with world.database.connection() as conn:
        assert await cooldowns.active(conn, account) == []
        assert await cooldowns.taken_at(conn, [account]) == {}
        opens_in_s = await conn.fetchval(
            "SELECT extract(epoch FROM opens_at - clock_timestamp()) FROM cooldowns WHERE code = 'unproven'"
        )
        assert 0 < opens_in_s <= KNOWN_IN_S
        assert await conn.fetchval("SELECT cleared_at FROM alarms WHERE name = 'carrier_refuses'") is not None
