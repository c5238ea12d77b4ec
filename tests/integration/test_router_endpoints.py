"""The router's endpoints on a whole platform: drains, lists, the queue, an open door, and two hundred at once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from tests.support.faults.proxy import TcpProxy
from tests.support.world import ADMIN_KEY, ALL_STANDARD, SECRET_KEY
from trunkline.api import router_endpoints
from trunkline.app import Platform
from trunkline.router import allocator
from trunkline.settings import load_settings


@dataclass
class Face:
    platform: Platform
    session: aiohttp.ClientSession

    async def ask(
        self, method: str, path: str, body: Any = None, *, key: str | None = ADMIN_KEY
    ) -> tuple[int, Any, Any]:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        url = f"{self.platform.base_url}/api/v1{path}"
        async with self.session.request(method, url, json=body, headers=headers) as response:
            return response.status, await response.json(), response.headers

    async def post(self, path: str, **body: object) -> tuple[int, Any]:
        status, answer, _ = await self.ask("POST", path, body)
        return status, answer

    async def pods(self, count: int) -> list[str]:
        names = [f"voice-agent-{number}" for number in range(count)]
        for name in names:
            status, _ = await self.post(
                f"/pods/{name}/heartbeat", ip="10.0.0.1", port=80, sequence=1, boot_id="b"
            )
            assert status == 200
        return names


@asynccontextmanager
async def served(database_url: str, redis_url: str, key_prefix: str, **more: object) -> AsyncIterator[Face]:
    given: dict[str, object] = {
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "TRUNKLINE_DOMAIN": key_prefix,
        "ROUTER_KEY_PREFIX": key_prefix,
        "TIER_CONFIG": ALL_STANDARD,
        "TRUNKLINE_ROLES": "router",
        "TRUNKLINE_SECRET_KEY": SECRET_KEY,
        "TRUNKLINE_ADMIN_KEY": ADMIN_KEY,
        "HTTP_PORT": 0,
        "METRICS_PORT": 0,
    }
    settings = load_settings({}, **(given | more))
    async with Platform.open(settings) as platform, aiohttp.ClientSession() as session:
        yield Face(platform, session)


@pytest.fixture(params=[{}])
async def face(
    request: pytest.FixtureRequest, database_url: str, redis_url: str, key_prefix: str
) -> AsyncIterator[Face]:
    async with served(database_url, redis_url, key_prefix, **request.param) as face:
        yield face


async def test_two_hundred_requests_for_a_hundred_calls_share_fifty_pods_over_http(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody is on the line here: all of them at once may take longer than a person waits.
    for name in ("ALLOCATE_S", "ANSWER_S"):
        monkeypatch.setattr(router_endpoints, name, 60.0)
    monkeypatch.setattr(allocator, "ENGINES_S", 60.0)
    await face.pods(50)
    calls = [f"call-{number % 100}" for number in range(200)]

    answers = await asyncio.gather(*(face.post("/allocate", call_sid=call) for call in calls))

    given = {
        (call, answer["allocation"]["pod_name"])
        for call, (status, answer) in zip(calls, answers, strict=True)
        if status == 200
    }
    assert len(given) == len({call for call, _ in given}) == len({pod for _, pod in given}) == 50
    refused = [answer for status, answer in answers if status == 503]
    assert len(refused) == 100
    assert {(answer["success"], answer["error"]) for answer in refused} == {(False, "no pods available")}
    assert [status for status, _ in answers].count(200) == 100


async def test_a_drain_and_its_end_answer_as_documented(face: Face) -> None:
    await face.pods(1)
    await face.post("/allocate", call_sid="call-1")
    status, answer = await face.post("/drain", pod_name="voice-agent-0")
    assert (status, answer) == (
        200,
        {
            "success": True,
            "pod_name": "voice-agent-0",
            "has_active_call": True,
            "message": "Pod drained successfully",
            "is_draining": True,
        },
    )
    status, answer = await face.post("/release", call_sid="call-1")
    assert (status, answer["was_draining"]) == (200, True)
    assert (await face.post("/allocate", call_sid="call-2"))[0] == 503
    status, answer, _ = await face.ask("DELETE", "/drain/voice-agent-0")
    assert (status, answer["is_draining"], answer["has_active_call"]) == (200, False, False)
    assert (await face.post("/allocate", call_sid="call-2"))[0] == 200


async def test_requests_about_an_unknown_pod_are_404_and_create_none(face: Face) -> None:
    asked = [
        await face.ask("POST", "/drain", {"pod_name": "voice-agent-9"}),
        await face.ask("DELETE", "/drain/voice-agent-9"),
        await face.ask("GET", "/pod/voice-agent-9"),
    ]
    for status, answer, _ in asked:
        assert (status, answer["success"], answer["error"], answer["code"]) == (
            404, False, "pod not found", "pod_not_found",
        )  # fmt: skip
    assert (await face.ask("GET", "/pods"))[1]["items"] == []


async def test_pods_and_calls_are_listed_page_by_page(face: Face) -> None:
    names = await face.pods(3)
    for number in range(2):
        await face.post("/allocate", call_sid=f"call-{number}", merchant_id="acme")
    _, first, _ = await face.ask("GET", "/pods?limit=2")
    _, second, _ = await face.ask("GET", f"/pods?limit=2&cursor={first['next_cursor']}")
    assert [pod["pod_name"] for pod in first["items"] + second["items"]] == names
    assert second["next_cursor"] is None
    _, calls, _ = await face.ask("GET", "/allocations")
    assert {(call["call_sid"], call["merchant_id"]) for call in calls["items"]} == {
        ("call-0", "acme"),
        ("call-1", "acme"),
    }
    assert (await face.ask("GET", "/pods?limit=0"))[0] == 400


async def test_a_key_without_the_scope_is_refused(face: Face) -> None:
    for key in (None, "tl_made_up"):
        status, answer, _ = await face.ask("POST", "/allocate", {"call_sid": "call-1"}, key=key)
        assert (status, answer["success"]) == (401, False)


@pytest.mark.parametrize("face", [{"ROUTER_API_OPEN": "true"}], indirect=True)
async def test_a_setting_opens_the_endpoints_as_in_the_source(face: Face) -> None:
    for method, path, body in (
        ("POST", "/pods/voice-agent-0/heartbeat", {"sequence": 1, "boot_id": "b"}),
        ("POST", "/allocate", {"call_sid": "call-1"}),
        ("GET", "/status", None),
        ("POST", "/release", {"call_sid": "call-1"}),
    ):
        assert (await face.ask(method, path, body, key=None))[0] == 200, path


@pytest.mark.parametrize("face", [{"ROUTER_HOLD_MAX": "60s"}], indirect=True)
async def test_a_waiting_call_gets_retry_after_and_then_the_freed_pod(face: Face) -> None:
    await face.pods(1)
    await face.post("/allocate", call_sid="call-1")
    body = {"call_sid": "call-2", "wait": True}
    status, answer, headers = await face.ask("POST", "/allocate", body)
    assert (status, answer["error"], answer["code"]) == (503, "no pods available", "hold")
    assert (answer["waiting_before"], headers["Retry-After"]) == (0, str(answer["retry_after_s"]))
    await face.post("/release", call_sid="call-1")
    assert (await face.post("/allocate", call_sid="call-3"))[1]["code"] == "no_pods_available"
    assert (await face.ask("POST", "/allocate", body))[0] == 200


async def test_the_probes_answer_as_documented(face: Face) -> None:
    for path, status in (("/health", "ok"), ("/ready", "ready")):
        async with face.session.get(f"{face.platform.base_url}{path}") as response:
            assert (response.status, (await response.json())["status"]) == (200, status)
    async with face.session.get(f"{face.platform.base_url}/metrics") as response:
        assert "trunkline_router_allocations_total" in await response.text()


async def test_without_postgres_calls_still_get_pods(face: Face) -> None:
    """The key is known already, and a router is ready while one engine answers."""
    await face.pods(1)
    await face.platform.database.close()
    assert (await face.post("/allocate", call_sid="call-1"))[0] == 200
    assert (await face.post("/release", call_sid="call-1"))[0] == 200
    async with face.session.get(f"{face.platform.base_url}/ready") as response:
        assert (response.status, (await response.json())["status"]) == (200, "degraded")


async def test_without_valkey_a_router_is_ready_and_gives_pods(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    async with TcpProxy.before(redis_url) as way, served(database_url, way.url, key_prefix) as face:
        await face.pods(1)
        way.refuse()
        way.cut()
        assert (await face.post("/allocate", call_sid="call-1"))[0] == 200
        async with face.session.get(f"{face.platform.base_url}/ready") as response:
            assert (response.status, (await response.json())["status"]) == (200, "degraded")


@pytest.mark.parametrize("face", [{"CALL_TIME_LIMIT": "20m"}], indirect=True)
async def test_the_heartbeat_reply_carries_the_longest_call(face: Face) -> None:
    _, answer = await face.post("/pods/voice-agent-0/heartbeat", ip="10.0.0.1", port=80)
    assert answer["call_time_limit_s"] == 1200
