"""Carriers that ask the router themselves: proven, answered in their own language, refused when forged."""

import asyncio
import re
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html import unescape
from urllib.parse import urlencode

import aiohttp
import pytest
from starlette.applications import Starlette

from tests.support.bus.router_keys import RouterKeys
from tests.support.router.world import RouterWorld
from tests.support.world import ALL_STANDARD
from trunkline.api import router_bodies, router_endpoints
from trunkline.api.router_carriers import CarrierApi, allocate_url
from trunkline.api.server import HttpServer, bind
from trunkline.api.webhooks.routes import PublicView, WebhookReader
from trunkline.bus.connection import connect
from trunkline.bus.keys import Keys
from trunkline.router.allocation_notes import AllocationNotes
from trunkline.router.allocator import Allocator
from trunkline.router.config import RouterConfig
from trunkline.router.pods import Pods
from trunkline.router.tokens import StreamKeys
from trunkline.routing import Unallocated
from trunkline.schema.router import AgentHeartbeat
from trunkline.settings import load_settings
from trunkline.store.database import connect as connect_database
from trunkline.telephony.accounts import AccountRefresher, accounts_of
from trunkline.telephony.callbacks import CallbackKeys, basic_password
from trunkline.telephony.carrier import AnswerFallback
from trunkline.telephony.carrier_registry import CarrierAccount
from trunkline.telephony.directory import AccountName, CarrierDirectory
from trunkline.telephony.plivo_webhooks import signature_v3
from trunkline.telephony.twilio_webhooks import signature

PUBLIC = "https://router.example.com"
KEYS = CallbackKeys.from_secrets(["a platform secret of at least 32 characters"])
SETTINGS = {
    "TWILIO_ACCOUNT_SID": "AC1",
    "TWILIO_AUTH_TOKEN": "twilio-token",
    "PLIVO_AUTH_ID": "MA1",
    "PLIVO_AUTH_TOKEN": "plivo-token",
    "EXOTEL_SID": "exo",
    "EXOTEL_API_KEY": "key",
    "EXOTEL_API_TOKEN": "token",
    "EXOTEL_APP_ID": "1",
}
Answer = tuple[int, str]


@dataclass
class Phones:
    """The carriers' side."""

    base: str
    session: aiohttp.ClientSession
    world: RouterWorld
    # What the next look at the accounts finds.
    stored: dict[AccountName, CarrierAccount] = field(default_factory=dict)
    pods: Pods | None = None
    hold_max_s: float = 0.0

    @property
    def unknown(self) -> str:
        """What Twilio is told where nobody can say whether a pod is free."""
        return "held=1#" if self.hold_max_s else "<Say>All agents are currently busy"

    async def pod(self, name: str) -> None:
        """A pod says that it is there."""
        assert self.pods is not None
        body = AgentHeartbeat(ip="10.0.0.7", port=8080, version="1")
        await self.pods.heartbeat(router_bodies.heartbeat(name, body))

    async def send(self, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        async with self.session.post(self.base + path, data=body, headers=headers) as response:
            return response.status, await response.text()

    async def twilio(
        self, call: str, path: str = "/api/v1/twilio/allocate?merchant_id=acme", token: str = ""
    ) -> Answer:
        form = {"CallSid": call, "From": "+14155550123", "To": "+14155550100"} if call else {"From": "+1"}
        proof = signature(token or "twilio-token", PUBLIC + path, form.items())
        headers = {"Content-Type": "application/x-www-form-urlencoded", "X-Twilio-Signature": proof}
        return await self.send(path, urlencode(form).encode(), headers)

    async def plivo(self, call: str, token: str = "plivo-token") -> Answer:
        path = "/api/v1/plivo/allocate?merchant_id=acme"
        form = {"CallUUID": call, "From": "14155550123", "To": "14155550100"}
        proof = signature_v3(token, "POST", PUBLIC + path, tuple(form.items()), "nonce-1")
        headers = {
            "Content-Type": "application/x-www-form-urlencoded",
            "X-Plivo-Signature-V3": proof,
            "X-Plivo-Signature-V3-Nonce": "nonce-1",
        }
        return await self.send(path, urlencode(form).encode(), headers)

    async def exotel(self, body: str, *, path: str = "", password: str = "") -> Answer:
        path = path or allocate_url("", KEYS, "exotel", "default", "")
        password = password or basic_password("exotel", "default", KEYS.keys[0])
        basic = b64encode(f"trunkline:{password}".encode()).decode()
        headers = {"Content-Type": "application/json", "Authorization": f"Basic {basic}"}
        return await self.send(path, body.encode(), headers)


APOLOGY = AnswerFallback()


@pytest.fixture(params=[0.0, 60.0], ids=["busy at once", "by the wait queue"])
async def phones(
    request: pytest.FixtureRequest, database_url: str, redis_url: str, key_prefix: str
) -> AsyncIterator[Phones]:
    async with open_phones(database_url, redis_url, key_prefix, hold_max_s=request.param) as phones:
        yield phones


@asynccontextmanager
async def open_phones(
    database_url: str,
    redis_url: str,
    key_prefix: str,
    *,
    hold_max_s: float,
    fallback: AnswerFallback = APOLOGY,
) -> AsyncIterator[Phones]:
    bus, keys = connect(redis_url, Keys(prefix=key_prefix)), RouterKeys(key_prefix)
    world = RouterWorld(bus, keys)
    await world.begin(ALL_STANDARD)
    config = RouterConfig(hold_max_s=hold_max_s)
    database = await connect_database(database_url, pool_size=4)
    secrets = StreamKeys.from_secrets(["a secret"], "wss://voice.example.com")
    allocator = Allocator(world.router_bus, config, database, AllocationNotes(database))
    pods = Pods(world.router_bus, config, database)
    carriers = CarrierDirectory(accounts_of(load_settings(SETTINGS), KEYS))
    stored: dict[AccountName, CarrierAccount] = {}

    async def refresh() -> None:
        carriers.replace_stored(stored)

    refresher = AccountRefresher(refresh, interval_s=0.0, wait_max_s=60.0)
    reader = WebhookReader(carriers, KEYS, PublicView(PUBLIC), refresher)
    face = CarrierApi(allocator, secrets, reader, fallback, hold_max_s)
    app = Starlette(routes=[hot.route() for hot in face.raw_routes()])
    server = HttpServer(app, bind("127.0.0.1", 0, "HTTP_PORT"), shutdown_timeout_s=1)
    server.start()
    async with aiohttp.ClientSession() as session:
        yield Phones(f"http://127.0.0.1:{server.port}", session, world, stored, pods, hold_max_s)
    await server.stop()
    await allocator.drain()
    await database.close()
    await carriers.aclose()
    await bus.close()


async def test_twilio_is_answered_with_the_pods_stream(phones: Phones) -> None:
    await phones.pod("voice-agent-0")
    status, document = await phones.twilio("CA123")
    assert status == 200
    assert '<Stream url="wss://voice.example.com/ws/pod/voice-agent-0/CA123">' in document
    assert '<Parameter name="token" value="' in document
    assert (await phones.twilio("CA123"))[1] == document, "a repeated webhook is answered the same"
    assert await phones.world.client.hget(phones.world.keys.call("CA123"), "merchant_id") == "acme"


async def test_plivo_is_answered_with_the_pods_stream(phones: Phones) -> None:
    await phones.pod("voice-agent-0")
    status, document = await phones.plivo("plivo-uuid-123")
    assert status == 200
    assert (
        '<Stream bidirectional="true" keepCallAlive="true" contentType="audio/x-mulaw;rate=8000">' in document
    )
    assert "wss://voice.example.com/ws/pod/voice-agent-0/plivo-uuid-123?token=" in document


async def test_exotel_is_answered_with_the_pods_url(phones: Phones) -> None:
    await phones.pod("voice-agent-0")
    status, document = await phones.exotel('{"CallSid": "exo-sid-123", "merchant_id": "acme-corp"}')
    assert status == 200
    assert document.startswith('{"url":"wss://voice.example.com/ws/pod/voice-agent-0/exo-sid-123?token=')
    assert await phones.world.client.hget(phones.world.keys.call("exo-sid-123"), "merchant_id") == "acme-corp"


async def test_without_a_free_pod_each_carrier_gets_its_hold_or_busy_document(
    phones: Phones, request: pytest.FixtureRequest
) -> None:
    waits = "wait queue" in request.node.callspec.id
    said = "All agents are currently busy. Please try again later."
    twilio, plivo, exotel = (
        await phones.twilio("CA1"),
        await phones.plivo("P1"),
        await phones.exotel('{"CallSid": "E1"}'),
    )
    assert (twilio[0], plivo[0], exotel[0]) == (200, 200, 503)
    if waits:
        assert '<Pause length="1" />' in twilio[1]
        assert "https://router.example.com/api/v1/twilio/allocate?merchant_id=acme#" in twilio[1]
        assert '<Wait length="1" />' in plivo[1]
    else:
        assert f"<Response><Say>{said}</Say><Hangup /></Response>" in twilio[1]
        assert plivo[1] == f"<Response><Speak>{said}</Speak><Hangup /></Response>"


async def test_a_call_that_is_over_is_hung_up(phones: Phones) -> None:
    await phones.pod("voice-agent-0")
    await phones.world.release("CA123")
    assert "<Response><Hangup /></Response>" in (await phones.twilio("CA123"))[1]


async def test_a_forged_allocate_request_is_refused(phones: Phones) -> None:
    await phones.pod("voice-agent-0")
    assert (await phones.twilio("CA1", token="another token"))[0] == 403
    assert (await phones.plivo("P1", token="another token"))[0] == 403
    body = '{"CallSid": "E1"}'
    assert (await phones.exotel(body, path="/api/v1/exotel/allocate?secret=guess"))[0] == 403
    assert (await phones.exotel(body, password="guess"))[0] == 401
    assert (await phones.twilio("CA1", path="/api/v1/twilio/allocate?account=nobody"))[0] == 403
    assert set(await phones.world.available("standard")) == {"voice-agent-0"}


async def test_an_allocate_request_without_a_call_id_is_refused(phones: Phones) -> None:
    status, answer = await phones.twilio("")
    assert (status, "CallSid is required" in answer) == (400, True)
    assert (await phones.exotel("{}"))[0] == 400
    assert (await phones.exotel("{"))[0] == 400
    assert (await phones.twilio("x" * 10_000))[0] == 400


async def test_a_hanging_allocator_still_gives_each_carrier_its_document(
    phones: Phones, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router_endpoints, "ALLOCATE_S", 0.05)
    monkeypatch.setattr(Allocator, "allocate", _hang)
    twilio, exotel = await phones.twilio("CA1"), await phones.exotel('{"CallSid": "E1"}')
    assert (twilio[0], exotel[0]) == (200, 503)
    assert phones.unknown in twilio[1]


async def test_a_failing_allocator_still_gives_each_carrier_its_document(
    phones: Phones, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def explode(*_: object, **__: object) -> None:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(Allocator, "allocate", explode)
    assert phones.unknown in (await phones.twilio("CA1"))[1]


FALLBACK = AnswerFallback("tel:+12125550199", "Nobody is there.")


@pytest.mark.parametrize("fallback", [FALLBACK, AnswerFallback(message="Nobody is there.")])
async def test_a_call_without_a_pod_gets_the_operators_fallback(
    database_url: str, redis_url: str, key_prefix: str, fallback: AnswerFallback
) -> None:
    async with open_phones(database_url, redis_url, key_prefix, hold_max_s=0, fallback=fallback) as phones:
        twilio, plivo, exotel = (
            await phones.twilio("CA1"),
            await phones.plivo("P1"),
            await phones.exotel('{"CallSid": "E1"}'),
        )
    said = "12125550199" if fallback.url else "Nobody is there."
    assert (said in twilio[1], said in plivo[1]) == (True, True)
    assert exotel == (503, '{"error":"Nobody is there."}'), "it knows no document but the URL of a stream"


async def test_while_both_engines_are_silent_a_call_holds_for_a_while_and_then_gets_the_fallback(
    database_url: str, redis_url: str, key_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody_knows(*_: object, **__: object) -> Unallocated:
        return Unallocated("unknown")

    monkeypatch.setattr(Allocator, "allocate", nobody_knows)
    path = "/api/v1/twilio/allocate?merchant_id=acme"
    async with open_phones(database_url, redis_url, key_prefix, hold_max_s=2, fallback=FALLBACK) as phones:
        for held in (1, 2):
            status, document = await phones.twilio("CA1", path=path)
            (again,) = re.findall(r"<Redirect[^>]*>([^<#]*)#", document)
            path = unescape(again).removeprefix(PUBLIC)
            assert (status, path) == (200, f"/api/v1/twilio/allocate?merchant_id=acme&held={held}")
        assert "+12125550199" in (await phones.twilio("CA1", path=path))[1]
        exotel = await phones.exotel('{"CallSid": "E1"}')
    assert exotel == (503, '{"error":"Nobody is there."}'), "it cannot hold"


async def test_a_request_of_an_unknown_account_makes_the_router_read_the_accounts(
    phones: Phones, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/api/v1/twilio/allocate?account=second"
    assert (await phones.twilio("CA1", path=path, token="new"))[0] == 403
    credentials = {"account_sid": "AC2", "auth_token": "new"}
    phones.stored["twilio", "second"] = CarrierAccount(credentials, KEYS, name="second")
    assert (await phones.twilio("CA1", path=path, token="new"))[0] == 200


async def _hang(*_: object, **__: object) -> None:
    await asyncio.Event().wait()
