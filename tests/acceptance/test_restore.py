"""A backup is restored beside a new Valkey, as after a disaster: no lead is dialled again."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from typer.testing import CliRunner

from tests.support.store.restoring import Server, open_server
from tests.support.waiting import eventually
from tests.support.world import ADMIN_KEY, CARRIER, SECRET_KEY, world_settings
from trunkline.agent.simulated import SimulatedPods
from trunkline.app import Platform
from trunkline.cli.main import app
from trunkline.client import ApiError, TrunklineClient
from trunkline.client.transport import Transport
from trunkline.telephony.simulator import Faults, Simulator

FROM = "+14155550100"
CALLED = [f"+150055510{n:02}" for n in range(30)]
OTHERS = [f"+150055510{n:02}" for n in range(50, 55)]
HOURS_3 = 3 * 3600
_FINISHED = "SELECT count(*) FROM leads WHERE status = 'FINISHED'"
KILL_SWITCH = "/api/v1/controls/kill-switch"


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[Server]:
    async with open_server(database_url) as server:
        yield server


class Place:
    """One installation, started again and again on the same Postgres."""

    def __init__(self, database_url: str, redis_url: str, carrier: Simulator):
        self.database_url = database_url
        self._redis_url = redis_url
        self.carrier = carrier

    @asynccontextmanager
    async def running(self, domain: str, roles: str | None = None) -> AsyncIterator[Platform]:
        settings = world_settings(
            self.database_url,
            self._redis_url,
            domain,
            self.carrier,
            **({"TRUNKLINE_ROLES": roles} if roles else {}),
        )
        async with Platform.open(settings) as platform, SimulatedPods(4, platform.base_url, ADMIN_KEY):
            yield platform

    async def restore_check(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        account = self.carrier.config.accounts[0]
        environment = {
            "DATABASE_URL": self.database_url,
            "TRUNKLINE_SECRET_KEY": SECRET_KEY,
            "TWILIO_BASE_URL": self.carrier.base_url,
            "TWILIO_ACCOUNT_SID": account.sid,
            "TWILIO_AUTH_TOKEN": account.auth_token,
        }
        command = ["restore-check", "--json", *arguments]
        result = await asyncio.to_thread(CliRunner().invoke, app, command, env=environment)
        assert result.output, result.exception
        return result.exit_code, json.loads(result.output)

    async def value(self, sql: str, *args: object) -> Any:
        conn = await asyncpg.connect(self.database_url)
        try:
            return await conn.fetchval(sql, *args)
        finally:
            await conn.close()

    async def grow_old(self, seconds: float) -> None:
        """Nothing but the last beat of a database tells its age."""
        await self.value(
            "UPDATE continuity SET beat_at = beat_at - make_interval(secs => $1) RETURNING beat", seconds
        )

    async def unfinished(self) -> int:
        return int(await self.value("SELECT count(*) FROM leads WHERE status <> 'FINISHED'"))

    @property
    def rung(self) -> Counter[str]:
        return Counter(dial.to for dial in self.carrier.ledger.dials)


@pytest.fixture
async def place(database_url: str, redis_url: str) -> AsyncIterator[Place]:
    async with Simulator(CARRIER) as carrier:
        yield Place(database_url, redis_url, carrier)


@asynccontextmanager
async def steering(platform: Platform) -> AsyncIterator[Transport]:
    transport = Transport(platform.base_url, ADMIN_KEY, 10.0)
    try:
        yield transport
    finally:
        await transport.close()


async def take_in(place: Place, domain: str) -> None:
    """30 leads of one merchant and 5 of another wait, and nobody dials."""
    async with (
        place.running(domain, roles="api") as platform,
        TrunklineClient(platform.base_url, ADMIN_KEY) as client,
    ):
        await client.create_reseller("r", "Reseller")
        await client.create_pool("p", "Pool", reseller_id="r")
        await client.create_number(FROM, pool="p", carrier="twilio", max_channels=10)
        for merchant, phones in (("m", CALLED), ("n", OTHERS)):
            await client.create_merchant(
                merchant, merchant, reseller_id="r", default_region="US", default_pool="p"
            )
            rows = [{"request_id": phone, "merchant_id": merchant, "phone": phone} for phone in phones]
            assert (await client.create_leads(rows)).created == len(phones)


async def call_thirty(place: Place, domain: str) -> None:
    async with place.running(domain, roles="api") as platform, steering(platform) as api:
        await api.put("/api/v1/controls/merchant/n", {"reason": "not yet"})
    async with place.running(domain):
        await eventually(
            lambda: _is(place, _FINISHED, len(CALLED)),
            timeout_s=60,
            what="30 are called",
        )
    assert place.rung == Counter(CALLED)


async def _is(place: Place, sql: str, expected: int) -> bool:
    return bool(await place.value(sql) == expected)


async def test_after_a_restore_beside_a_new_valkey_no_lead_is_dialled_again(
    place: Place, server: Server, key_prefix: str
) -> None:
    await take_in(place, f"{key_prefix}-old")
    await server.back_up()
    await call_thirty(place, f"{key_prefix}-old")
    await server.restore()
    await place.grow_old(HOURS_3)

    async with place.running(f"{key_prefix}-new") as platform, steering(platform) as api:
        await eventually(lambda: _is(place, "SELECT count(*) FROM restores", 1), what="it is noticed")
        code, found = await place.restore_check()
        assert code == 1, "it is not settled"
        assert sorted(lead["phone"] for lead in found["called"]) == CALLED
        assert [len(lead["calls"]) for lead in found["called"]] == [1] * len(CALLED)
        assert (found["doubtful"], found["later"], found["orphans"]) == ([], [], [])
        with pytest.raises(ApiError, match="restore-check"):
            await api.put(KILL_SWITCH, {"reason": "for a second", "duration_s": 1})
        with pytest.raises(ApiError, match="restore-check"):
            await api.delete(KILL_SWITCH, {"reason": "checked", "ramp_s": 0})
        assert place.rung == Counter(CALLED), "0 of 30 were called again"

        code, settled = await place.restore_check("--settle")
        assert (code, settled["settled"]) == (0, {"restored": len(CALLED), "unknown": 0})
        await api.delete(KILL_SWITCH, {"reason": "settled", "ramp_s": 0})
        await eventually(lambda: _nothing_left(place), timeout_s=60, what="the others are called")
        assert (await place.restore_check())[1]["called"] == []
    assert place.rung == Counter(CALLED + OTHERS), "only the others"
    outcomes = await place.value("SELECT array_agg(DISTINCT outcome) FROM leads WHERE merchant_id = 'm'")
    assert outcomes == ["ANSWERED"], "they have the outcome of their calls"
    assert await place.value("SELECT count(*) FROM attempts WHERE merchant_id = 'm'") == len(CALLED)


async def _nothing_left(place: Place) -> bool:
    return await place.unfinished() == 0


async def test_restore_check_settles_nothing_with_unread_lists_unless_accept_unread_is_given(
    place: Place, server: Server, key_prefix: str
) -> None:
    await take_in(place, f"{key_prefix}-old")
    await server.back_up()
    await call_thirty(place, f"{key_prefix}-old")
    await server.restore()
    await place.grow_old(HOURS_3)
    place.carrier.faults = Faults(list_down=True)
    async with place.running(f"{key_prefix}-new") as platform, steering(platform) as api:
        await eventually(lambda: _is(place, "SELECT count(*) FROM restores", 1), what="it is noticed")
        code, found = await place.restore_check("--settle")
        assert (code, found["settled"], found["unread"]) == (1, "lists_unread", len(CALLED) + len(OTHERS))
        code, found = await place.restore_check("--settle", "--accept-unread")
        assert (code, found["settled"]) == (0, {"restored": 0, "unknown": len(CALLED) + len(OTHERS)})
        await api.delete(KILL_SWITCH, {"reason": "settled", "ramp_s": 0})
        assert await place.unfinished() == 0
    assert place.rung == Counter(CALLED), "in doubt nobody is called again"
