"""What the doctor finds out about carriers: credentials, the way back, and why a signature would not fit."""

from collections.abc import AsyncIterator
from ipaddress import ip_network
from pathlib import Path

import pytest

from tests.support.api.webhooks import SECRET, open_door, reverse_proxy
from trunkline.cli.doctor import Finding, examine_carriers
from trunkline.model import new_id
from trunkline.schema.accounts import NewAccount
from trunkline.settings import Settings, load_settings
from trunkline.store.accounts import ACCOUNTS
from trunkline.store.database import connect
from trunkline.telephony.accounts import Vault
from trunkline.telephony.simulator import Simulator, SimulatorConfig


@pytest.fixture
async def carrier() -> AsyncIterator[Simulator]:
    async with Simulator(SimulatorConfig()) as simulator:
        yield simulator


def settings(carrier: Simulator, folder: Path, **more: object) -> Settings:
    account = carrier.config.account("twilio")
    given: dict[str, object] = {
        "TRUNKLINE_SECRET_KEY": SECRET,
        "TRUNKLINE_DATA_DIR": str(folder),
        "TWILIO_BASE_URL": carrier.base_url,
        "TWILIO_ACCOUNT_SID": account.sid,
        "TWILIO_AUTH_TOKEN": account.auth_token,
    }
    return load_settings({}, **(given | more))


async def found(settings: Settings, what: str, database_url: str | None = None) -> Finding:
    (finding,) = [each for each in await examine_carriers(settings, database_url) if each.what == what]
    return finding


async def test_doctor_accepts_valid_credentials(carrier: Simulator, tmp_path: Path) -> None:
    finding = await found(settings(carrier, tmp_path), "twilio")
    assert (finding.state, finding.detail) == ("ok", "the credentials are valid; 2 numbers")


async def test_doctor_tells_a_wrong_token_from_an_unreachable_carrier(
    carrier: Simulator, tmp_path: Path
) -> None:
    wrong = await found(settings(carrier, tmp_path, TWILIO_AUTH_TOKEN="another"), "twilio")
    assert wrong.state == "problem"
    assert "rejects these credentials" in wrong.detail
    await carrier.stop()
    away = await found(settings(carrier, tmp_path), "twilio")
    assert away.state == "problem"
    assert "cannot be reached" in away.detail


async def test_without_an_account_doctor_says_how_to_add_one(tmp_path: Path) -> None:
    (finding,) = await examine_carriers(load_settings({}, TRUNKLINE_DATA_DIR=str(tmp_path)), None)
    assert (finding.what, finding.state) == ("carriers", "warning")
    assert "trunkline accounts add" in finding.detail


async def test_doctor_checks_stored_accounts(carrier: Simulator, tmp_path: Path, database_url: str) -> None:
    account = carrier.config.account("plivo")
    credentials = {"auth_id": account.sid, "auth_token": account.auth_token}
    database = await connect(database_url, pool_size=1)
    for name, secret in (("good", SECRET), ("sealed", "a key that is gone and was another one")):
        sealed = Vault.from_secrets([secret]).seal("plivo", name, credentials)
        async with database.transaction() as tx:
            new = NewAccount(carrier="plivo", name=name, credentials={}, base_url=carrier.base_url)
            await ACCOUNTS.insert(tx, new, id=new_id(), credentials=sealed)
    await database.close()
    assert (await found(settings(carrier, tmp_path), "plivo good", database_url)).state == "ok"
    sealed_one = await found(settings(carrier, tmp_path), "plivo sealed", database_url)
    assert sealed_one.state == "problem"
    assert "another TRUNKLINE_SECRET_KEY" in sealed_one.detail


async def test_a_remote_carrier_needs_a_public_base_url(carrier: Simulator, tmp_path: Path) -> None:
    near = await found(settings(carrier, tmp_path), "PUBLIC_BASE_URL")
    assert near.state == "ok"
    far = settings(carrier, tmp_path, TWILIO_BASE_URL="http://carrier.invalid")
    finding = await found(far, "PUBLIC_BASE_URL")
    assert finding.state == "problem"
    assert "which they cannot reach" in finding.detail


async def test_doctor_requests_the_public_base_url_and_verifies_signatures(
    carrier: Simulator, tmp_path: Path, database_url: str, redis_url: str, key_prefix: str
) -> None:
    async with open_door(database_url, redis_url, key_prefix) as door:
        finding = await found(settings(carrier, tmp_path, PUBLIC_BASE_URL=door.url), "PUBLIC_BASE_URL")
        assert (finding.state, finding.detail) == (
            "ok",
            f"{door.url} reaches this API, and signatures fit the URL that it sees",
        )
        other_key = settings(carrier, tmp_path, PUBLIC_BASE_URL=door.url, TRUNKLINE_SECRET_KEY="another" * 8)
        refused = await found(other_key, "PUBLIC_BASE_URL")
        assert "refuses our own URL" in refused.detail
        elsewhere = settings(carrier, tmp_path, PUBLIC_BASE_URL=carrier.base_url)
        assert "responds with 404" in (await found(elsewhere, "PUBLIC_BASE_URL")).detail


async def test_doctor_explains_a_proxy_that_changes_the_url(
    carrier: Simulator, tmp_path: Path, database_url: str, redis_url: str, key_prefix: str
) -> None:
    """The carrier would sign the proxy's address; the server behind it sees its own."""
    async with (
        open_door(database_url, redis_url, key_prefix) as door,
        reverse_proxy(door.url, {}) as public,
    ):
        finding = await found(settings(carrier, tmp_path, PUBLIC_BASE_URL=public), "PUBLIC_BASE_URL")
    assert finding.state == "problem"
    assert f"a carrier signs {public}/webhooks/twilio/status" in finding.detail
    assert f"this server sees {door.url}/webhooks/twilio/status" in finding.detail
    assert f"PUBLIC_BASE_URL={public}" in finding.detail
    assert "TRUSTED_PROXIES=127.0.0.1" in finding.detail


async def test_doctor_accepts_a_trusted_proxy(
    carrier: Simulator, tmp_path: Path, database_url: str, redis_url: str, key_prefix: str
) -> None:
    trusted = [ip_network("127.0.0.0/8")]
    async with open_door(database_url, redis_url, key_prefix, trusted=trusted) as door:
        headers: dict[str, str] = {}
        async with reverse_proxy(door.url, headers) as public:
            headers |= {"X-Forwarded-Host": public.removeprefix("http://"), "X-Forwarded-Proto": "http"}
            finding = await found(settings(carrier, tmp_path, PUBLIC_BASE_URL=public), "PUBLIC_BASE_URL")
    assert finding.state == "ok"


async def test_doctor_reports_an_unreachable_public_base_url(carrier: Simulator, tmp_path: Path) -> None:
    nobody = settings(carrier, tmp_path, PUBLIC_BASE_URL="http://127.0.0.1:1")
    assert "cannot be reached" in (await found(nobody, "PUBLIC_BASE_URL")).detail


async def test_doctor_requests_the_fallback_base_url(
    carrier: Simulator, tmp_path: Path, database_url: str, redis_url: str, key_prefix: str
) -> None:
    async with open_door(
        database_url, redis_url, key_prefix, public_base_url="https://calls.example.com"
    ) as door:
        given = settings(carrier, tmp_path, FALLBACK_BASE_URL=door.url)
        finding = await found(given, "FALLBACK_BASE_URL")
        assert finding.state == "problem", "the server does not know that it is asked there"
        assert f"Set FALLBACK_BASE_URL={door.url}" in finding.detail
    async with open_door(database_url, redis_url, key_prefix, fallback_base_url=door.url) as door:
        assert (
            await found(settings(carrier, tmp_path, FALLBACK_BASE_URL=door.url), "FALLBACK_BASE_URL")
        ).state == "ok"
    nowhere = await found(
        settings(carrier, tmp_path, FALLBACK_BASE_URL="http://127.0.0.1:1"), "FALLBACK_BASE_URL"
    )
    assert "cannot be reached" in nowhere.detail
