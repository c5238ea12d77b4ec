"""Option B: only what the carrier itself sent is answered. The carriers' own SDKs sign and judge."""

from base64 import b64encode
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from urllib.parse import urlencode

import aiohttp
import pytest
from aiohttp import web
from plivo.utils.signature_v3 import validate_v3_signature  # type: ignore[import-untyped]
from twilio.request_validator import RequestValidator  # type: ignore[import-untyped]

from trunkline.agent.answers import AnswerRoutes, AnswerSettings, answer_url
from trunkline.client import PodAllocation, RolloutFlags
from trunkline.telephony.plivo_webhooks import signature_v2, signature_v3

OWN = "https://agent.example.com"
SETTINGS = AnswerSettings(
    own_url=OWN,
    twilio_tokens=("new-token", "old-token"),
    plivo_tokens=("plivo-token",),
    exotel_password="a-password",
    secret="s3cret",
)
QUERY = "?merchant_id=acme&secret=s3cret&name=a%20b"
NONCE = "05429567804466091622"


@dataclass
class Asked:
    """Stands for the router's client, and remembers whose calls it was asked for."""

    calls: list[tuple[str, str, str]] = field(default_factory=list)

    async def route(self, call_sid: str, merchant_id: str, provider: str) -> PodAllocation:
        self.calls.append((call_sid, merchant_id, provider))
        return PodAllocation("pod-0", "wss://voice/ws", "pool:standard", "", False, "t-1")


@dataclass
class Agent:
    url: str
    asked: Asked

    async def post(self, path: str, form: dict[str, str], headers: dict[str, str]) -> int:
        async with (
            aiohttp.ClientSession() as session,
            session.post(self.url + path, data=form, headers=headers) as response,
        ):
            return response.status

    async def get(self, path: str, password: str = "") -> tuple[int, str]:
        proof = b64encode(f"trunkline:{password}".encode()).decode()
        headers = {"Authorization": f"Basic {proof}"} if password else {}
        async with (
            aiohttp.ClientSession() as session,
            session.get(self.url + path, headers=headers) as response,
        ):
            return response.status, response.headers.get("WWW-Authenticate", "")


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    asked, app = Asked(), web.Application()
    app.add_routes(AnswerRoutes(asked, SETTINGS).routes())  # type: ignore[arg-type]  # stands for the client
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield Agent(f"http://127.0.0.1:{runner.addresses[0][1]}", asked)
    await runner.cleanup()


@pytest.mark.parametrize("token", ["new-token", "old-token"])
@pytest.mark.parametrize("own", [OWN, f"{OWN}:443"])
async def test_a_request_signed_by_twilio_is_answered(agent: Agent, token: str, own: str) -> None:
    form = {"CallSid": "CA1", "From": "+1 415", "Empty": ""}
    proof = RequestValidator(token).compute_signature(f"{own}/twilio/allocate{QUERY}", form)
    assert await agent.post(f"/twilio/allocate{QUERY}", form, {"X-Twilio-Signature": proof}) == 200
    assert agent.asked.calls == [("CA1", "acme", "twilio")]


async def test_a_request_not_signed_by_twilio_is_refused_without_asking_the_router(agent: Agent) -> None:
    form, path = {"CallSid": "CA1"}, f"/twilio/allocate{QUERY}"
    good = RequestValidator("new-token").compute_signature(OWN + path, form)
    foreign = RequestValidator("stolen-token").compute_signature(OWN + path, form)
    assert await agent.post(path, form, {}) == 403
    assert await agent.post(path, form, {"X-Twilio-Signature": foreign}) == 403
    assert await agent.post(path, {"CallSid": "CA2"}, {"X-Twilio-Signature": good}) == 403
    assert await agent.post(path + "&CallSid=CA2", form, {"X-Twilio-Signature": good}) == 403
    assert await agent.post(f"/plivo/allocate{QUERY}", form, {"X-Twilio-Signature": good}) == 403
    without_secret = "/twilio/allocate?merchant_id=acme"
    proof = RequestValidator("new-token").compute_signature(OWN + without_secret, form)
    assert await agent.post(without_secret, form, {"X-Twilio-Signature": proof}) == 403
    assert agent.asked.calls == []


@pytest.mark.parametrize("header", ["X-Plivo-Signature-V3", "X-Plivo-Signature-Ma-V3"])
async def test_a_request_signed_by_plivo_is_answered(agent: Agent, header: str) -> None:
    form, path = {"CallUUID": "u-1", "From": "+1"}, f"/plivo/allocate{QUERY}"
    proof = signature_v3("plivo-token", "POST", OWN + path, list(form.items()), NONCE)
    assert validate_v3_signature("POST", OWN + path, NONCE, "plivo-token", proof, form)
    headers = {header: f"c29tZXRoaW5n,{proof}", "X-Plivo-Signature-V3-Nonce": NONCE}
    assert await agent.post(path, form, headers) == 200
    assert agent.asked.calls == [("u-1", "acme", "plivo")]


async def test_a_request_not_signed_by_plivo_is_refused(agent: Agent) -> None:
    form, path = {"CallUUID": "u-1"}, f"/plivo/allocate{QUERY}"
    fields = list(form.items())
    foreign = signature_v3("stolen", "POST", OWN + path, fields, NONCE)
    good = signature_v3("plivo-token", "POST", OWN + path, fields, NONCE)
    url_only = signature_v2("plivo-token", OWN + path, NONCE)
    nonce = {"X-Plivo-Signature-V3-Nonce": NONCE}
    assert await agent.post(path, form, {}) == 403
    assert await agent.post(path, form, nonce | {"X-Plivo-Signature-V3": foreign}) == 403
    assert await agent.post(path, form, {"X-Plivo-Signature-V3": good}) == 403
    assert await agent.post(path, {"CallUUID": "u-2"}, nonce | {"X-Plivo-Signature-V3": good}) == 403
    v2 = {"X-Plivo-Signature-V2": url_only, "X-Plivo-Signature-V2-Nonce": NONCE}
    assert await agent.post(path, form, v2) == 403
    assert agent.asked.calls == []


async def test_an_exotel_request_needs_the_secret_and_the_password(agent: Agent) -> None:
    path = f"/voicebot-url?{urlencode({'CallSid': 'e-1', 'secret': 's3cret', 'merchant_id': 'acme'})}"
    right, wrong = "a-password", "another"
    assert await agent.get(path) == (401, 'Basic realm="trunkline"')
    assert (await agent.get(path, wrong))[0] == 403
    assert (await agent.get(path.replace("s3cret", "guess"), right))[0] == 403
    assert agent.asked.calls == []
    assert (await agent.get(path, right))[0] == 200
    assert agent.asked.calls == [("e-1", "acme", "exotel")]


def test_exotels_url_carries_the_secret_and_the_password() -> None:
    url = answer_url("exotel", "acme", SETTINGS, "https://router", RolloutFlags)
    assert url == "https://trunkline:a-password@agent.example.com/voicebot-url?merchant_id=acme&secret=s3cret"


def test_the_environment_is_read_under_its_documented_names_and_nothing_of_it_is_shown() -> None:
    settings = AnswerSettings.from_env(
        {
            "VOICE_AGENT_ANSWER_SECRET": "s3cret",
            "VOICE_AGENT_ANSWER_URL": OWN,
            "TWILIO_AUTH_TOKEN": "new-token, old-token",
            "PLIVO_AUTH_TOKEN": "plivo-token",
            "VOICE_AGENT_EXOTEL_PASSWORD": "a-password",
        }
    )
    assert settings == SETTINGS
    assert not any(secret in repr(settings) for secret in ("s3cret", "token,", "plivo-token", "a-password"))


def test_answer_routes_without_a_secret_log_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    AnswerRoutes(Asked(), AnswerSettings(twilio_tokens=("t",)))  # type: ignore[arg-type]  # stands for the client
    assert "plivo, exotel" in caplog.text
