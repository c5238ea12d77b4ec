"""The router over HTTP: documented bodies and status codes, and pods that talk to it for real."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.testing import capture_logs

from tests.support.bus.router_keys import RouterKeys
from tests.support.dispatch.dialing import open_dialing
from tests.support.faults.proxy import TcpProxy
from tests.support.router import api_page
from tests.support.waiting import eventually
from tests.support.world import ALL_STANDARD
from trunkline.agent import Agent, AgentSettings, Call
from trunkline.agent import session as session_module
from trunkline.agent.simulated import SimulatedPods
from trunkline.api import router_endpoints
from trunkline.api.principal import Principal
from trunkline.api.router_endpoints import RouterEndpoints
from trunkline.api.server import HttpServer, bind
from trunkline.bus.connection import Bus, connect
from trunkline.bus.keys import Keys
from trunkline.bus.router import RouterBus
from trunkline.model import new_id
from trunkline.router.addresses import PodAddresses
from trunkline.router.allocation_notes import AllocationNotes
from trunkline.router.allocator import Allocator
from trunkline.router.config import RouterConfig
from trunkline.router.pods import Pods
from trunkline.router.registry import PodRegistry
from trunkline.router.tokens import StreamKeys
from trunkline.settings.tiers import parse_tiers
from trunkline.store.database import Database
from trunkline.store.database import connect as connect_database
from trunkline.store.tenants import PLATFORM, Tenant

KEY = "tl_router_key"
BEAT = {"boot_id": "b1", "sequence": 1}
TWO_AT_ONCE = '{"standard": {"type": "shared", "target": 9, "max_concurrent": 2}}'


TENANTS = {"Bearer tl_router_key": PLATFORM, "Bearer tl_tenant_key": Tenant("acme")}


@dataclass(frozen=True)
class Authorized:
    """The application, as far as the router's endpoints need it: it knows whose key a request has."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            tenant = TENANTS.get(Headers(scope=scope).get("authorization", ""))
            if tenant is None:
                await Response(status_code=401)(scope, receive, send)
                return
            who = Principal(new_id(), "k", frozenset({"router"}), tenant, None)
            scope.setdefault("state", {})["principal"] = who
        await self.app(scope, receive, send)


@dataclass
class Face:
    """The router as a client sees it."""

    url: str
    bus: Bus
    keys: RouterKeys
    session: aiohttp.ClientSession
    addresses: PodAddresses
    database: Database

    async def post(self, path: str, body: Any, key: str = KEY) -> tuple[int, dict[str, Any]]:
        data = body if isinstance(body, bytes) else json.dumps(body)
        headers = {"Authorization": f"Bearer {key}"}
        async with self.session.post(f"{self.url}/api/v1{path}", data=data, headers=headers) as response:
            text = await response.text()
            return response.status, json.loads(text) if text else {}

    async def get(self, path: str) -> tuple[int, dict[str, Any]]:
        headers = {"Authorization": f"Bearer {KEY}"}
        async with self.session.get(f"{self.url}/api/v1{path}", headers=headers) as response:
            return response.status, await response.json()

    async def heartbeat(self, pod: str, calls: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
        body = {"ip": "10.0.0.7", "port": 8080, "version": "1.2.3", "calls": calls, **more}
        status, answer = await self.post(f"/pods/{pod}/heartbeat", body)
        assert status == 200, answer
        return answer


@asynccontextmanager
async def served(
    bus: Bus, prefix: str, database_url: str, tier_config: str = ALL_STANDARD
) -> AsyncIterator[Face]:
    database = await connect_database(database_url, pool_size=4)
    keys = RouterKeys(prefix)
    router_bus = RouterBus(bus, keys)
    stream_keys = StreamKeys.from_secrets(["a platform secret"], "wss://voice.example.com")
    config = RouterConfig(tiers=parse_tiers(tier_config), settle_s=0)
    registry = PodRegistry(database, router_bus, config)
    writing = asyncio.create_task(registry.run())
    allocator = Allocator(router_bus, config, database, AllocationNotes(database))
    addresses = PodAddresses(database)
    api = RouterEndpoints(allocator, Pods(router_bus, config, database, registry), stream_keys, addresses)
    app = Authorized(Starlette(routes=[hot.route() for hot in api.raw_routes()]))
    server = HttpServer(app, bind("127.0.0.1", 0, "HTTP_PORT"), shutdown_timeout_s=1)
    server.start()
    async with aiohttp.ClientSession() as session:
        yield Face(f"http://127.0.0.1:{server.port}", bus, keys, session, addresses, database)
    await server.stop()
    await allocator.drain()
    registry.stop()
    await writing
    await database.close()


@pytest.fixture
async def face(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Face]:
    bus = connect(redis_url, Keys(prefix=key_prefix))
    async with served(bus, key_prefix, database_url) as face:
        yield face
    await bus.close()


async def test_allocate_answers_as_documented(face: Face) -> None:
    await face.heartbeat("voice-agent-0")

    status, answer = await face.post("/allocate", {"call_sid": "call-abc123", "merchant_id": "acme-corp"})

    assert status == 200
    allocation = answer["allocation"]
    token, allocated_at = allocation.pop("token"), allocation.pop("allocated_at")
    assert answer == {
        "success": True,
        "allocation": {
            "pod_name": "voice-agent-0",
            "ws_url": "wss://voice.example.com/ws/pod/voice-agent-0/call-abc123",
            "source_pool": "pool:standard",
            "was_existing": False,
        },
    }
    assert len(allocated_at) == len("2026-02-08T10:00:00Z")
    assert allocated_at.endswith("Z")
    again = (await face.post("/allocate", {"call_sid": "call-abc123"}))[1]["allocation"]
    assert (again["was_existing"], again["token"]) == (True, token)


async def test_the_documented_heartbeats_register_a_pod_and_report_its_call(
    face: Face,
) -> None:
    """Bodies and answers of docs/reference/api.md, on a store that is as new as the pod."""
    idle, busy = api_page.examples("POST /api/v1/pods/{name}/heartbeat")
    assert await said_by_the_page(face, idle) == json.loads(idle.answered)
    (call,) = json.loads(busy.asked)["calls"]
    status, answer = await face.post("/allocate", {"call_sid": call})
    assert (status, answer["allocation"]["pod_name"]) == (200, json.loads(idle.answered)["pod_name"])
    assert await said_by_the_page(face, busy) == json.loads(busy.answered)


async def said_by_the_page(face: Face, example: api_page.Example) -> dict[str, Any]:
    status, answer = await face.post(example.path.removeprefix("/api/v1"), example.asked.encode())
    assert status == 200, answer
    return answer | {"stream_secrets": ["…" for _ in answer["stream_secrets"]]}


async def test_a_hanging_allocate_is_answered_503(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(router_endpoints, "ALLOCATE_S", 0.05)
    monkeypatch.setattr(Allocator, "allocate", hang)
    status, answer = await face.post("/allocate", {"call_sid": "call-abc123"})
    assert (status, answer["code"]) == (503, "unavailable")


async def test_without_a_free_pod_the_answer_is_503(face: Face) -> None:
    status, answer = await face.post("/allocate", {"call_sid": "call-abc123"})
    assert (status, answer["success"], answer["error"]) == (503, False, "no pods available")
    assert answer["code"] == "no_pods_available"


async def test_a_call_that_has_ended_is_answered_with_410(face: Face) -> None:
    await face.heartbeat("voice-agent-0")
    await face.post("/release", {"call_sid": "call-abc123"})
    status, answer = await face.post("/allocate", {"call_sid": "call-abc123"})
    assert (status, answer["code"]) == (410, "call_ended")


async def test_release_answers_as_documented(face: Face) -> None:
    await face.heartbeat("voice-agent-0")
    await face.post("/allocate", {"call_sid": "call-abc123"})

    assert await face.post("/release", {"call_sid": "call-abc123"}) == (
        200,
        {
            "success": True,
            "pod_name": "voice-agent-0",
            "released_to_pool": "pool:standard",
            "was_draining": False,
        },
    )
    status, answer = await face.post("/release", {"call_sid": "call-abc123"})
    assert (status, answer["success"], answer["error"]) == (404, False, "call not found")


async def test_status_and_pod_answer_as_documented(face: Face) -> None:
    await face.heartbeat("voice-agent-0")
    await face.heartbeat("voice-agent-1")
    call_pod = (await face.post("/allocate", {"call_sid": "call-1"}))[1]["allocation"]["pod_name"]

    assert await face.get("/status") == (
        200,
        {
            "pools": {"standard:available": 1, "standard:assigned": 2},
            "active_calls": 1,
            "is_leader": False,
            "status": "up",
            "waiting": 0,
            "free": {"standard": 1},
            "kept": 0,
            "kept_by_tier": {"standard": 0},
        },
    )
    assert await face.get(f"/pod/{call_pod}") == (
        200,
        {
            "pod_name": call_pod,
            "tier": "standard",
            "is_draining": False,
            "has_active_lease": True,
            "lease_call_sid": "call-1",
            "status": "allocated",
            "calls": ["call-1"],
            "ip": "10.0.0.7",
            "port": 8080,
            "version": "1.2.3",
            "hanging": [],
            "handing_over": [],
        },
    )
    assert (await face.get("/pod/voice-agent-9"))[0] == 404


async def test_a_pods_hanging_handlers_are_shown_and_survive_a_reset(face: Face) -> None:
    await face.heartbeat("voice-agent-0", ("call-3",), hanging=["call-2", "call-1"], handing_over=["call-3"])

    _, pod = await face.get("/pod/voice-agent-0")
    assert (pod["hanging"], pod["handing_over"]) == (["call-1", "call-2"], ["call-3"])
    _, pods = await face.get("/pods")
    assert [(one["hanging"], one["handing_over"]) for one in pods["items"]] == [
        (["call-1", "call-2"], ["call-3"])
    ]
    await face.heartbeat("voice-agent-0", hanging=["call-1", "call-2"], draining=True)
    status, reset = await face.post("/pods/voice-agent-0/reset", {})
    assert (status, reset["still_named"], reset["hanging"]) == (200, [], ["call-1", "call-2"])
    assert reset["message"].startswith("Handlers of 2 calls that are over hang in the pod")
    assert reset["status"] == "draining"

    await face.heartbeat("voice-agent-0")
    _, reset = await face.post("/pods/voice-agent-0/reset", {})
    assert (reset["hanging"], reset["status"], reset["message"]) == ([], "available", "Pod is free")


async def test_a_reset_of_an_unknown_pod_is_answered_404(face: Face) -> None:
    status, answer = await face.post("/pods/voice-agent-9/reset", {})
    assert (status, answer["code"]) == (404, "pod_not_found")


async def test_a_heartbeat_is_answered_with_tier_draining_flag_and_the_pods_secret(face: Face) -> None:
    mine, others = await face.heartbeat("voice-agent-0"), await face.heartbeat("voice-agent-1")

    assert (mine["tier"], mine["draining"], mine["call_sid"]) == ("standard", False, "")
    assert len(mine["stream_secrets"]) == 1
    assert mine["stream_secrets"] != others["stream_secrets"]

    await face.bus.client.set(face.keys.draining("voice-agent-0"), "true", ex=360)
    assert (await face.heartbeat("voice-agent-0"))["draining"] is True


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        ("/allocate", {}, "call_sid is required"),
        ("/allocate", {"call_sid": ""}, "call_sid is required"),
        ("/allocate", {"call_sid": "x" * 10_000}, "call_sid must be 1 to 128"),
        ("/allocate", {"call_sid": "two words"}, "call_sid must be 1 to 128"),
        ("/allocate", {"call_sid": 7}, "Expected `str`"),
        ("/allocate", {"call_sid": "c", "merchant_id": "m" * 300}, "merchant_id must be at most"),
        ("/allocate", b"{", "the body is not JSON"),
        ("/allocate", b"[]", "Expected `object`"),
        ("/allocate", b'"' + b"x" * 300_000 + b'"', "the body must be at most"),
        ("/release", {}, "call_sid is required"),
        ("/release", {"call_sid": "c", "pod_name": "Not A Pod"}, "pod_name must be"),
        ("/pods/metadata/heartbeat", {}, "pod_name must be"),
        ("/pods/voice-agent-0/heartbeat", {"calls": ["a b"]}, "call_sid must be"),
        ("/pods/voice-agent-0/heartbeat", {"hanging": ["a b"]}, "call_sid must be"),
        ("/pods/voice-agent-0/heartbeat", {"hanging": ["a"] * 1001}, "hanging must be at most 1000"),
        ("/pods/voice-agent-0/heartbeat", {"port": 70_000}, "port must be"),
        ("/pods/voice-agent-0/heartbeat", {"sequence": -1}, "sequence must be"),
        ("/pods/voice-agent-0/heartbeat", {"base_url": "http://x"}, "base_url must begin"),
        # Above 0, and below what the column can hold.
        ("/pods/voice-agent-0/heartbeat", {"interval_s": 1.7e-153}, "interval_s must be from"),
    ],
)
async def test_bad_input_is_refused_with_a_reason_and_changes_nothing(
    face: Face, path: str, body: Any, error: str
) -> None:
    status, answer = await face.post(path, body)

    assert (status, answer["success"], answer["code"]) == (400, False, "invalid_request")
    assert answer["error"].startswith(error)
    assert set(await face.bus.client.keys(f"{face.keys.prefix}:*")) <= {face.keys.hearing}


async def test_a_key_is_needed_and_a_tenants_key_is_not_enough(face: Face) -> None:
    assert (await face.post("/allocate", {"call_sid": "c"}, key="nobody"))[0] == 401
    status, answer = await face.post("/allocate", {"call_sid": "c"}, key="tl_tenant_key")
    assert (status, answer["code"]) == (403, "forbidden")


async def test_without_valkey_postgres_gives_calls_their_pods(database_url: str, key_prefix: str) -> None:
    bus = connect("redis://127.0.0.1:1", Keys(prefix=key_prefix))
    async with served(bus, key_prefix, database_url) as face:
        status, answer = await face.post("/allocate", {"call_sid": "c"})
        assert (status, answer["code"]) == (503, "no_pods_available")
        async with open_dialing(database_url) as dialing:
            await dialing.pod("voice-agent-0")
        status, answer = await face.post("/allocate", {"call_sid": "c"})
        assert (status, answer["allocation"]["pod_name"]) == (200, "voice-agent-0")
    await bus.close()


async def test_an_outage_logs_one_line_for_all_heartbeats(database_url: str, key_prefix: str) -> None:
    bus = connect("redis://127.0.0.1:1", Keys(prefix=key_prefix))
    async with TcpProxy.before(database_url) as way, served(bus, key_prefix, way.url) as face:
        way.refuse()
        way.cut()
        with capture_logs() as logs:
            statuses = [(await face.post(f"/pods/agent-{n}/heartbeat", BEAT))[0] for n in range(5)]
    await bus.close()
    assert statuses == [503] * 5
    assert [line["what"] for line in logs if line["event"] == "router.unavailable"] == ["heartbeat"]


async def test_without_both_engines_the_answer_is_503_and_says_so(database_url: str, key_prefix: str) -> None:
    bus = connect("redis://127.0.0.1:1", Keys(prefix=key_prefix))
    async with TcpProxy.before(database_url) as way, served(bus, key_prefix, way.url) as face:
        way.refuse()
        way.cut()
        status, answer = await face.post("/allocate", {"call_sid": "c"})
    await bus.close()
    assert (status, answer["code"]) == (503, "unavailable")


async def hold_a_call(face: Face, call_sid: str, talk: asyncio.Event) -> str:
    """What a carrier does: ask for a pod, stream to it until the person hangs up. The name of the pod, or ''."""
    status, answer = await face.post("/allocate", {"call_sid": call_sid})
    if status == 503:
        return ""
    allocation = answer["allocation"]
    parameters = {"token": allocation["token"]}
    start = {"streamSid": f"MZ{call_sid}", "callSid": call_sid, "customParameters": parameters}
    media = {"event": "media", "media": {"payload": "fn5+", "track": "inbound", "timestamp": "20"}}
    async with face.session.ws_connect(allocation["ws_url"]) as socket:
        await socket.send_json({"event": "connected", "protocol": "Call", "version": "1.0.0"})
        await socket.send_json({"event": "start", "start": start})
        await socket.send_json(media)
        echo = await socket.receive_json()
        assert echo["media"]["payload"] == "fn5+"
        await talk.wait()
        await socket.send_json({"event": "stop"})
        await socket.receive()
    return str(allocation["pod_name"])


async def test_simulated_pods_take_one_call_at_a_time_and_are_free_afterwards(face: Face) -> None:
    async with SimulatedPods(3, face.url, KEY) as pods:
        talk = asyncio.Event()
        talk.set()
        served: list[str] = []
        for wave in range(4):
            calls = [hold_a_call(face, f"call-{wave}-{number}", talk) for number in range(3)]
            served += await asyncio.gather(*calls)
            await _all_free(face, 3)

        records = pods.records()
        assert sorted(set(served)) == pods.names
        assert len(records.calls) == 12
        assert records.overlaps == []


async def test_a_handler_that_hangs_costs_its_pod_one_call_until_it_ends(
    database_url: str, redis_url: str, key_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent library and the router, without a stand-in for either."""
    monkeypatch.setattr(session_module, "FINISH_TIMEOUT_S", 0.05)
    monkeypatch.setattr(session_module, "CANCEL_TIMEOUT_S", 0.05)
    may_end = asyncio.Event()

    async def hangs(_call: Call) -> None:
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue

    bus = connect(redis_url, Keys(prefix=key_prefix))
    async with served(bus, key_prefix, database_url, TWO_AT_ONCE) as face:

        async def hanging(calls: list[str]) -> bool:
            return bool((await face.get("/pod/agent-0"))[1]["hanging"] == calls)

        async def allocate(call_sid: str) -> int:
            return (await face.post("/allocate", {"call_sid": call_sid}))[0]

        agent = Agent(hangs, AgentSettings(face.url, KEY, pod_name="agent-0"), port=0)
        await agent.start()
        try:
            await agent.registered.wait()
            token = (await face.post("/allocate", {"call_sid": "call-1"}))[1]["allocation"]["token"]
            start = {"streamSid": "MZ1", "callSid": "call-1", "customParameters": {"token": token}}
            url = f"ws://127.0.0.1:{agent.port}/ws/pod/agent-0/call-1"
            async with face.session.ws_connect(url) as socket:
                await socket.send_json({"event": "connected", "protocol": "Call", "version": "1.0.0"})
                await socket.send_json({"event": "start", "start": start})
                await socket.send_json({"event": "stop"})
            await eventually(lambda: hanging(["call-1"]))
            assert [await allocate("call-2"), await allocate("call-3")] == [200, 503]

            may_end.set()
            await eventually(lambda: hanging([]))
            assert await allocate("call-3") == 200
        finally:
            may_end.set()
            for call_sid in ("call-2", "call-3"):
                await face.post("/release", {"call_sid": call_sid})
            await agent.stop()
    await bus.close()


async def test_a_release_by_the_platform_keeps_a_talking_pod_out_of_the_pool(face: Face) -> None:
    async with SimulatedPods(1, face.url, KEY) as pods:
        talk = asyncio.Event()
        first = asyncio.create_task(hold_a_call(face, "call-1", talk))
        await _named(face, "voice-agent-0", "call-1")

        assert (await face.post("/release", {"call_sid": "call-1"}))[0] == 200
        assert await hold_a_call(face, "call-2", talk) == ""

        talk.set()
        assert await first == "voice-agent-0"
        await _all_free(face, 1)
        assert await hold_a_call(face, "call-3", talk) == "voice-agent-0"
        assert pods.records().overlaps == []


async def test_stopped_pods_are_not_allocated(face: Face) -> None:
    async with SimulatedPods(2, face.url, KEY):
        await _all_free(face, 2)
    assert (await face.post("/allocate", {"call_sid": "call-1"}))[0] == 503


async def _all_free(face: Face, count: int) -> None:
    """For Valkey, which proposes, and for Postgres, which decides: a heartbeat that was under way when its call was
    released may name it once more."""

    async def free() -> bool:
        status = (await face.get("/status"))[1]
        takes = await face.database.pool.fetchval("SELECT count(*) FROM pods AS p WHERE pod_takes(p, false)")
        return (status["pools"]["standard:available"], takes) == (count, count)

    await eventually(free)


async def _named(face: Face, pod: str, call_sid: str) -> None:
    """Until the router has heard from the pod that it holds the call."""
    client: Any = face.bus.client

    async def named() -> bool:
        return bool(await client.hget(face.keys.pod(pod), "calls") == call_sid)

    await eventually(named)


async def test_the_pod_address_is_answered_without_valkey(database_url: str, key_prefix: str) -> None:
    """A stream waits for the address, and the pod reserved for the call is alive."""
    bus = connect("redis://127.0.0.1:1", Keys(prefix=key_prefix))
    async with served(bus, key_prefix, database_url) as face:
        async with open_dialing(database_url) as dialing:
            await dialing.pod("voice-agent-0")
            await dialing.run("UPDATE pods SET ip = '10.0.0.7', port = 8081")
        await face.addresses.run_once()
        headers = {"Authorization": f"Bearer {KEY}"}
        url = f"{face.url}/api/v1/pod/voice-agent-0/address"
        async with face.session.get(url, headers=headers) as answer:
            assert (answer.status, answer.headers["X-Pod-Address"]) == (204, "10.0.0.7:8081")
    await bus.close()


async def test_the_pod_address_follows_a_pod_that_returned_at_another_address(face: Face) -> None:
    """At once: the call that lost its agent there is given to the new process before this one has looked again."""
    headers = {"Authorization": f"Bearer {KEY}"}
    url = f"{face.url}/api/v1/pod/voice-agent-0/address"
    for boot, port in (("first", 8081), ("second", 8082)):
        body = {"ip": "10.0.0.7", "port": port, "boot_id": boot, "sequence": 1, "calls": []}
        assert (await face.post("/pods/voice-agent-0/heartbeat", body))[0] == 200
        async with face.session.get(url, headers=headers) as answer:
            assert (answer.status, answer.headers["X-Pod-Address"]) == (204, f"10.0.0.7:{port}")
        if boot == "first":
            await face.addresses.run_once()


async def test_the_pod_address_is_that_of_the_later_incarnation_in_postgres(face: Face) -> None:
    body = {"ip": "10.0.0.7", "port": 8081, "boot_id": "first", "sequence": 1, "calls": []}
    await face.post("/pods/voice-agent-0/heartbeat", body)
    await face.database.pool.execute("UPDATE pods SET incarnation = nextval('pod_incarnations'), port = 8082")
    await face.addresses.run_once()
    headers = {"Authorization": f"Bearer {KEY}"}
    async with face.session.get(f"{face.url}/api/v1/pod/voice-agent-0/address", headers=headers) as answer:
        assert answer.headers["X-Pod-Address"] == "10.0.0.7:8082"
