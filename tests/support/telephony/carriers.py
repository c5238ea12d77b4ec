"""A carrier, the simulator that plays it and the other end of its webhooks: what the conformance suite runs on."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from tests.support.world import ADMIN_KEY, CARRIER, World, world_settings
from trunkline.agent.simulated import SimulatedPods
from trunkline.app import Platform
from trunkline.client import TrunklineClient
from trunkline.clock import Clock, SystemClock
from trunkline.telephony.callbacks import CallbackKeys, callback_url, fallback_of
from trunkline.telephony.carrier import (
    DEFAULT_ACCOUNT,
    Accepted,
    CallbackKind,
    CallEvent,
    CallOrder,
    CallView,
    Carrier,
)
from trunkline.telephony.carrier_registry import CarrierAccount
from trunkline.telephony.exotel import Exotel
from trunkline.telephony.plivo import Plivo
from trunkline.telephony.simulator import Faults, SimulatedAccount, Simulator, SimulatorConfig
from trunkline.telephony.simulator.calls import SimulatedCall
from trunkline.telephony.simulator.config import ACCOUNTS, CarrierName
from trunkline.telephony.simulator.receiver import Receiver
from trunkline.telephony.twilio import Twilio
from trunkline.telephony.vapi import Vapi

FROM = "+15005559901"
KEYS = CallbackKeys.from_secrets(["a secret of the tests"])
APP_ID, ASSISTANT_ID, CREDENTIAL_ID = "4711", "assistant-1", "cred_1"
TIMEOUT_S = 5.0

Builder = Callable[[str, SimulatedAccount, Clock], Carrier]


@dataclass(frozen=True, slots=True)
class Trait:
    """Where carriers differ, and what the suite may expect of each."""

    build: Builder
    # The kinds of status webhooks that an answered call brings.
    told: tuple[str, ...]
    # Whether it is told, and shown by REST, that somebody answered, before the call is over.
    shows_answered: bool = True
    # What of a webhook its proof does not cover.
    uncovered: frozenset[str] = frozenset()
    # Whether webhooks carry their own time, so that an old one is known for old.
    dated: bool = True


def _account(base_url: str, credentials: Mapping[str, str], name: str = DEFAULT_ACCOUNT) -> CarrierAccount:
    return CarrierAccount(credentials, KEYS, base_url, TIMEOUT_S, name)


def _twilio(base_url: str, account: SimulatedAccount, clock: Clock) -> Carrier:
    given = {"account_sid": account.sid, "auth_token": account.auth_token}
    return Twilio(_account(base_url, given), clock=clock)


def _plivo(base_url: str, account: SimulatedAccount, clock: Clock) -> Carrier:
    given = {"auth_id": account.sid, "auth_token": account.auth_token}
    return Plivo(_account(base_url, given), clock=clock)


def _exotel(base_url: str, account: SimulatedAccount, clock: Clock) -> Carrier:
    given = {
        "sid": account.sid,
        "api_key": account.api_key,
        "api_token": account.auth_token,
        "app_id": APP_ID,
    }
    name = DEFAULT_ACCOUNT if account in ACCOUNTS else account.sid
    return Exotel(_account(base_url, given, name), clock=clock)


def _vapi(base_url: str, account: SimulatedAccount, clock: Clock) -> Carrier:
    given = {
        "api_key": account.auth_token,
        "webhook_secret": account.auth_token,
        "assistant_id": ASSISTANT_ID,
        "credential_id": CREDENTIAL_ID,
    }
    return Vapi(_account(base_url, given), clock=clock)


TRAITS: Mapping[CarrierName, Trait] = {
    "twilio": Trait(_twilio, ("initiated", "ringing", "answered", "ended")),
    # Its answer is the request for the document. A webhook is signed with a nonce, and has no time.
    "plivo": Trait(_plivo, ("ringing", "ended"), dated=False),
    # No signature: the secret is in the URL's query, the password in a header.
    "exotel": Trait(
        _exotel,
        ("answered", "ended"),
        shows_answered=False,
        uncovered=frozenset({"body changed", "body grown", "body removed", "another host", "query added"}),
    ),
    # Its signature covers time and body; the URL is covered by our own.
    "vapi": Trait(
        _vapi,
        ("initiated", "ringing", "answered", "ended", "ended"),
        uncovered=frozenset({"another host", "query added"}),
    ),
}

_RANK = {
    "initiated": 0,
    "ringing": 1,
    "answered": 2,
    "ended": 3,
    "stream_began": 4,
    "stream_failed": 5,
    "stream_ended": 6,
}


@dataclass
class Line:
    name: CarrierName
    trait: Trait
    simulator: Simulator
    receiver: Receiver
    carrier: Carrier
    built: list[Carrier] = field(default_factory=list)

    @property
    def account(self) -> SimulatedAccount:
        return self.simulator.config.account(self.name)

    def another(
        self, base_url: str = "", account: SimulatedAccount | None = None, clock: Clock | None = None
    ) -> Carrier:
        carrier = self.trait.build(
            base_url or self.simulator.base_url, account or self.account, clock or SystemClock()
        )
        self.built.append(carrier)
        return carrier

    def url(self, kind: CallbackKind, attempt: UUID | None = None) -> str:
        return callback_url(self.receiver.base_url, self.name, kind, attempt, KEYS)

    def order(self, to: str, attempt: UUID | None = None, fallback_base_url: str = "") -> CallOrder:
        attempt = attempt or uuid4()
        answer_url = self.url("answer", attempt)
        return CallOrder(
            attempt_id=attempt,
            to=to,
            from_=FROM,
            answer_url=answer_url,
            fallback_url=fallback_of(answer_url, fallback_base_url) if fallback_base_url else "",
            status_url=self.url("status", attempt),
            ring_timeout_s=600,
            time_limit_s=14_400,
        )

    async def accepted(self, to: str, attempt: UUID | None = None) -> str:
        result = await self.carrier.place(self.order(to, attempt))
        assert isinstance(result, Accepted), result
        return result.call_id

    def ring(self, to: str = FROM, from_: str = "+15005551601") -> None:
        """Somebody calls us."""
        self.simulator.ring(
            self.name,
            to,
            from_,
            inbound_url=self.carrier.entry_url(self.url("inbound")),
            status_url=self.carrier.entry_url(self.url("status")),
            hmac_secret=self.account.auth_token if self.name == "vapi" else "",
        )

    def events(self, callback: str = "status") -> list[CallEvent]:
        """In the order in which they happened; they may have arrived in another."""
        parsed = [self.carrier.parse_webhook(request) for request in self.receiver.requests]
        events = [event for event in parsed if isinstance(event, CallEvent)]
        assert len(events) == len(parsed), parsed
        return sorted((e for e in events if e.callback == callback), key=lambda event: _RANK[event.kind])

    async def until(self, kind: str) -> None:
        await self.receiver.until(
            lambda _: kind in [event.kind for name in ("status", "answer") for event in self.events(name)]
        )

    async def listed(self, to: str) -> list[CallView]:
        calls = await self.carrier.list_calls(to, FROM, datetime.now(UTC) - timedelta(seconds=60))
        assert isinstance(calls, list), calls
        return calls

    def stream_start(self) -> tuple[str, dict[str, str]]:
        """The call that the agent was told of, and the parameters that reached it."""
        start: dict[str, Any] = next(
            message["start"] for message in self.receiver.stream_messages if message["event"] == "start"
        )
        call_id = start.get("callSid") or start.get("callId") or start.get("call_sid")
        return str(call_id), start.get("customParameters") or self.receiver.stream_query


@asynccontextmanager
async def open_line(name: CarrierName, config: SimulatorConfig | None = None) -> AsyncIterator[Line]:
    config = config or SimulatorConfig(
        time_scale=0.005,
        faults=Faults(slow_reply_s=(0.01, 0.02), reply_lost_s=0.05),
        media_interval_s=0.02,
    )
    async with Receiver() as receiver, Simulator(config) as simulator:
        trait = TRAITS[name]
        carrier = trait.build(simulator.base_url, config.account(name), SystemClock())
        line = Line(name, trait, simulator, receiver, carrier, [carrier])
        receiver.document = lambda _: carrier.answer_document(receiver.stream_url, {})
        if name == "exotel":
            simulator.flows[APP_ID] = carrier.entry_url(line.url("answer"))
        if name == "vapi":
            simulator.vapi_numbers.add(FROM)
            simulator.vapi_credentials[CREDENTIAL_ID] = config.account(name).auth_token
        yield line
        for one in line.built:
            await one.aclose()


# --- the whole platform at one of the carriers


def carrier_settings(simulator: Simulator) -> dict[str, object]:
    """Accounts at all four, all played by one simulator. Nothing is to be slowed down but by a test."""
    plivo, exotel, vapi = (simulator.config.account(name) for name in ("plivo", "exotel", "vapi"))
    urls = {f"{name.upper()}_BASE_URL": simulator.base_url for name in TRAITS}
    paces = {f"{name.upper()}_CALLS_PER_SECOND": 1000 for name in TRAITS}
    return {
        **urls,
        **paces,
        "PLIVO_AUTH_ID": plivo.sid,
        "PLIVO_AUTH_TOKEN": plivo.auth_token,
        "EXOTEL_SID": exotel.sid,
        "EXOTEL_API_KEY": exotel.api_key,
        "EXOTEL_API_TOKEN": exotel.auth_token,
        "EXOTEL_APP_ID": APP_ID,
        "VAPI_API_KEY": vapi.auth_token,
        "VAPI_WEBHOOK_SECRET": "a webhook secret of the tests",
        "VAPI_ASSISTANT_ID": ASSISTANT_ID,
    }


@asynccontextmanager
async def open_carrier_world(
    database_url: str,
    redis_url: str,
    domain: str,
    *,
    config: SimulatorConfig | None = None,
    number: str = FROM,
    pods: int = 4,
    **more: object,
) -> AsyncIterator[World]:
    """A world with accounts at all carriers: what an operator would enter there is entered. There is no number yet."""
    async with Simulator(config or CARRIER) as simulator:
        settings = world_settings(
            database_url, redis_url, domain, simulator, **(carrier_settings(simulator) | more)
        )
        async with (
            Platform.open(settings) as platform,
            SimulatedPods(pods, platform.base_url, ADMIN_KEY) as simulated,
            TrunklineClient(platform.base_url, ADMIN_KEY) as client,
        ):
            simulator.flows[APP_ID] = platform.ingress.accounts.urls("exotel", "default")["answer"]
            simulator.vapi_numbers.add(number)
            await client.create_reseller("r", "Reseller")
            await client.create_pool("p", "Pool", reseller_id="r")
            await client.create_merchant(
                "m", "Merchant", reseller_id="r", default_region="US", default_pool="p"
            )
            yield World(platform, simulator, simulated, client)


def ring_in(
    world: World, carrier: CarrierName, to: str, from_: str, account: str = "default"
) -> SimulatedCall:
    """Somebody calls one of our numbers, at the URLs that the platform says to enter."""
    urls = world.platform.ingress.accounts.urls(carrier, account)
    secret = {"X-Vapi-Secret": "a webhook secret of the tests"} if carrier == "vapi" else {}
    return world.carrier.ring(
        carrier, to, from_, inbound_url=urls["inbound"], status_url=urls["status"], headers=secret
    )
