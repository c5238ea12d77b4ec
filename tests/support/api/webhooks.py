"""The webhook endpoint alone, on a real socket with real engines behind it, and a reverse proxy to put before it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import UUID

import aiohttp
from aiohttp import web

from trunkline.api.application import create_api
from trunkline.api.deps import ApiDeps
from trunkline.api.server import HttpServer, bind
from trunkline.api.webhooks.answers import Answers, FindStream, LateEvents
from trunkline.api.webhooks.routes import Network, PublicView, WebhookReader, WebhookRoutes
from trunkline.bus import connection as bus_connection
from trunkline.bus.keys import Keys
from trunkline.clock import SystemClock
from trunkline.dispatch.inbound import Inbound
from trunkline.mailbox.inbox import Inbox
from trunkline.router.allocator import CallToConnect, Stream
from trunkline.routing import Unallocated
from trunkline.store import database as store_database
from trunkline.store.database import Database
from trunkline.telemetry import metrics
from trunkline.telephony.accounts import AccountRefresher
from trunkline.telephony.callbacks import CallbackKeys, callback_url
from trunkline.telephony.carrier import AnswerFallback, CallbackKind
from trunkline.telephony.carrier_registry import CarrierAccount
from trunkline.telephony.directory import AccountName, CarrierDirectory

SECRET = "a secret of the tests and as long as one must be"
KEYS = CallbackKeys.from_secrets([SECRET])
TWILIO_TOKEN = "a-token-of-the-tests"
EXAMPLES: Mapping[str, Mapping[str, str]] = {
    "twilio": {"account_sid": "AC1", "auth_token": TWILIO_TOKEN},
    "plivo": {"auth_id": "MA1", "auth_token": "plivo-token"},
    "exotel": {"sid": "exo", "api_key": "exo-key", "api_token": "exo-token"},
    "vapi": {"api_key": "vapi-key", "webhook_secret": "vapi-secret"},
}


@dataclass
class Door:
    """`streams` are the calls that were given one; `stream` is what the next gets, unless `finder` looks for one."""

    url: str
    database: Database
    http: aiohttp.ClientSession
    public_url: str
    stream: Stream | Unallocated = field(
        default_factory=lambda: Stream("wss://pods.example.com/ws/1", {"token": "t"})
    )
    streams: list[tuple[str, UUID]] = field(default_factory=list)
    asked: list[CallToConnect] = field(default_factory=list)
    # Answers that are not written down yet.
    late_events: LateEvents | None = None
    directory: CarrierDirectory | None = None
    finder: FindStream | None = None

    def callback(
        self, carrier: str, kind: CallbackKind, attempt: UUID | None, account: str = "default"
    ) -> str:
        """As the carrier is given it."""
        return callback_url(self.public_url, carrier, kind, attempt, KEYS, account)

    def here(self, url: str) -> str:
        """The same path at the server itself."""
        return url.replace(self.public_url, self.url)

    async def written(self) -> None:
        """Answers are written down after they were given."""
        if self.late_events is not None:
            await self.late_events.written()

    async def events(self) -> list[str]:
        await self.written()
        async with self.database.connection() as conn:
            rows = await conn.fetch("SELECT type FROM mailbox_events ORDER BY created_at")
        return [row["type"] for row in rows]

    async def find_stream(self, answered: CallToConnect) -> Stream | Unallocated:
        self.streams.append((answered.call_id, answered.attempt_id))
        self.asked.append(answered)
        return await self.finder(answered) if self.finder else self.stream


def count(metric: object, **labels: str) -> float:
    """What a counter has counted under these labels."""
    samples = [sample for family in metric.collect() for sample in family.samples]  # type: ignore[attr-defined]
    wanted = [s for s in samples if s.name.endswith("_total") and labels.items() <= s.labels.items()]
    return float(sum(sample.value for sample in wanted))


@asynccontextmanager
async def open_door(
    database_url: str,
    redis_url: str,
    prefix: str,
    *,
    public_base_url: str | None = None,
    trusted: Sequence[Network] = (),
    accounts: Mapping[AccountName, CarrierAccount] | None = None,
    refresher: AccountRefresher | None = None,
    fallback: AnswerFallback | None = None,
    fallback_base_url: str | None = None,
    # Long: how fast the machine is does not decide what a call is told.
    answer_s: float = 60.0,
    hold_max_s: float = 10.0,
) -> AsyncIterator[Door]:
    database = await store_database.connect(database_url, pool_size=4)
    bus = bus_connection.connect(redis_url, Keys(prefix))
    clock, inbox = SystemClock(), Inbox(database, bus)
    known = {(name, "default"): CarrierAccount(given, KEYS) for name, given in EXAMPLES.items()}
    directory = CarrierDirectory(known | dict(accounts or {}))
    listener = bind("127.0.0.1", 0, "HTTP_PORT")
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with aiohttp.ClientSession() as http:
        door = Door(url, database, http, public_base_url or url)
        late_events = door.late_events = LateEvents(inbox.append_all)
        door.directory = directory
        view = PublicView(public_base_url, trusted, fallback_base_url)
        answers = Answers(
            Inbound(database, bus, "test"),
            door.find_stream,
            KEYS,
            fallback or AnswerFallback(),
            hold_max_s,
            connect_s=answer_s,
        )
        reader = WebhookReader(directory, KEYS, view, refresher)
        webhooks = WebhookRoutes(reader, answers, inbox, late_events, clock, answer_s)
        deps = ApiDeps(database, clock, _nothing, {}, metrics.render)
        server = HttpServer(create_api(deps, webhooks.raw_routes()), listener, shutdown_timeout_s=1.0)
        server.start()
        try:
            yield door
        finally:
            await server.stop()
            await late_events.aclose()
            await inbox.aclose()
            await directory.aclose()
            await bus.close()
            await database.close()


async def _nothing(_: object) -> None:
    return None


@asynccontextmanager
async def reverse_proxy(upstream: str, headers: Mapping[str, str], strip: str = "") -> AsyncIterator[str]:
    """A proxy as operators have one: another host, another scheme, perhaps a prefix, and headers that tell of them."""
    async with aiohttp.ClientSession() as http:

        async def forward(request: web.Request) -> web.Response:
            sent = {
                name: value
                for name, value in request.headers.items()
                if name not in ("Host", "Content-Length")
            }
            target = f"{upstream}{request.raw_path.removeprefix(strip)}"
            async with http.request(
                request.method, target, headers=sent | dict(headers), data=await request.read()
            ) as answer:
                return web.Response(status=answer.status, body=await answer.read())

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", forward)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()
