"""A real nginx in front of several processes: where one dies or hangs, nginx asks another, and the same call gets
the same pod. No request is answered 502 because of one failed process."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.integration.test_router_http import KEY, served
from tests.integration.test_router_nginx import TEMPLATES, talk
from tests.support.api import nginx
from tests.support.faults.proxy import TcpProxy
from tests.support.waiting import eventually
from trunkline.agent.simulated import SimulatedPods
from trunkline.bus.connection import connect
from trunkline.bus.keys import Keys

pytestmark = pytest.mark.skipif(nginx.NGINX is None, reason="no nginx here: apt-get install nginx-light")

ANSWER, ALLOCATE = "/webhooks/twilio/answer?attempt=1&sig=2", "/api/v1/twilio/allocate"
# After a process that hangs, the templates leave 0.3 s to ask another one.
STANDSTILL_S = 0.2
ROUNDS_MAX = 10
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def process(handler: Handler) -> AsyncIterator[str]:
    """A process of the platform that answers as it is told here."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def front(folder: Path, *urls: str, template: str = "self-registered") -> AsyncIterator[str]:
    values = {
        "ROUTERS": nginx.servers(*urls),
        "ROUTER_KEY": KEY,
        "FALLBACK": "127.0.0.1:1",
        "RESOLVER": "127.0.0.1:1",
        "PODS": ".0.0.1:1",
    }
    async with nginx.serving(TEMPLATES / f"{template}.conf.template", values, folder) as address:
        yield f"http://{address}"


class Well:
    """Answers, and counts who asked."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.asked: list[bytes] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(await request.read())
        return web.Response(status=self.status, text="<Response/>", content_type="application/xml")


async def hang(request: web.Request) -> web.Response:
    await request.read()
    await asyncio.Event().wait()
    raise AssertionError


async def die(request: web.Request) -> web.Response:
    """The process is killed with the request in its hands."""
    await request.read()
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def broken(_request: web.Request) -> web.Response:
    return web.Response(status=500)


async def posts(url: str, count: int = 4) -> list[tuple[int, str]]:
    async def post(session: aiohttp.ClientSession) -> tuple[int, str]:
        async with session.post(url, data={"CallSid": "CA1"}) as answer:
            return answer.status, await answer.text()

    async with aiohttp.ClientSession() as session:
        return [await post(session) for _ in range(count)]


@pytest.mark.parametrize("template", ["self-registered", "kubernetes"])
@pytest.mark.parametrize("ill", [hang, die, broken], ids=lambda one: one.__name__)
@pytest.mark.parametrize("path", [ANSWER, ALLOCATE], ids=["answer", "allocate"])
async def test_nginx_passes_a_request_to_another_process_when_one_dies_or_hangs(
    tmp_path: Path, template: str, ill: Handler, path: str
) -> None:
    """The healthy process is this one. If it stood still as well, or nginx did, a failed round shows nothing."""
    right = [(200, "<Response/>")] * 4, [b"CallSid=CA1"] * 4
    said: list[tuple[int, str]] = []
    well = Well()
    for _ in range(ROUNDS_MAX):
        well = Well()
        async with (
            process(ill) as first,
            process(well.answer) as second,
            front(tmp_path, first, second, template=template) as url,
            nginx.pulse(url.removeprefix("http://")) as pulse,
        ):
            said = await posts(url + path)
            stood_still = pulse.longest_s > STANDSTILL_S
        if (said, well.asked) == right or not stood_still:
            break
    assert said == [(200, "<Response/>")] * 4
    assert well.asked == [b"CallSid=CA1"] * 4, "with the body that the carrier sent"


async def test_nginx_passes_over_a_process_that_is_gone(tmp_path: Path) -> None:
    well = Well()
    async with process(well.answer) as second, front(tmp_path, "http://127.0.0.1:1", second) as url:
        assert [status for status, _ in await posts(url + ANSWER)] == [200] * 4
        assert [status for status, _ in await posts(url + "/webhooks/twilio/status")] == [200] * 4


async def test_nginx_asks_a_failed_process_again_when_it_is_the_only_one(tmp_path: Path) -> None:
    """Passed over by all, nobody would be left to answer: 502, and a person is hung up on."""
    well, is_ill = Well(), True

    async def ill_once(request: web.Request) -> web.StreamResponse:
        nonlocal is_ill
        if is_ill:
            is_ill = False
            return await die(request)
        return await well.answer(request)

    async with process(ill_once) as only, front(tmp_path, only) as url:
        assert [status for status, _ in await posts(url + ANSWER)] == [200] * 4


async def test_nginx_passes_exotels_503_through_without_a_retry(tmp_path: Path) -> None:
    busy, other = Well(503), Well(503)
    async with (
        process(busy.answer) as first,
        process(other.answer) as second,
        front(tmp_path, first, second) as url,
    ):
        said = await posts(url + "/webhooks/exotel/answer")
        assert [status for status, _ in said] == [503] * 4
        assert len(busy.asked) + len(other.asked) == 4, "asked once each"
        assert busy.asked, "and nobody is passed over for it"
        assert other.asked


async def test_nginx_does_not_retry_a_slow_status_webhook(tmp_path: Path) -> None:
    """Postgres may take seconds, and the carrier waits for 15."""
    began, go, other = asyncio.Event(), asyncio.Event(), Well()

    async def slow(request: web.Request) -> web.Response:
        began.set()
        await go.wait()
        return web.Response(status=204)

    async with process(slow) as first, front(tmp_path, first) as url, process(other.answer):
        asked = asyncio.create_task(posts(f"{url}/webhooks/twilio/status", 1))
        await began.wait()
        go.set()
        assert [status for status, _ in await asked] == [204]


async def test_a_retried_allocate_gets_the_same_pod_from_another_process(
    tmp_path: Path, database_url: str, redis_url: str, key_prefix: str
) -> None:
    """The first process allocates, and hangs before its answer has left."""
    bus = connect(redis_url, Keys(prefix=key_prefix))
    async with (
        served(bus, key_prefix, database_url) as one,
        served(bus, key_prefix, database_url) as two,
        TcpProxy.before(one.url) as way,
        SimulatedPods(3, two.url, KEY),
        front(tmp_path, way.url, two.url) as url,
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session,
    ):
        pods: list[Any] = []
        way.swallow_reply()
        for _ in range(3):
            async with session.post(f"{url}/api/v1/allocate", json={"call_sid": "CA1"}) as answer:
                assert answer.status == 200
                pods.append((await answer.json())["allocation"])
        assert len({pod["pod_name"] for pod in pods}) == 1
        assert len({pod["token"] for pod in pods}) == 1
        status, live = await two.get("/allocations")
        assert (status, len(live["items"])) == (200, 1)
        await two.post("/release", {"call_sid": "CA1"})
    await bus.close()


async def test_nginx_routes_a_stream_to_its_pod_while_no_process_answers(
    tmp_path: Path, database_url: str, redis_url: str, key_prefix: str
) -> None:
    bus = connect(redis_url, Keys(prefix=key_prefix))
    async with (
        served(bus, key_prefix, database_url) as face,
        TcpProxy.before(face.url) as way,
        SimulatedPods(1, face.url, KEY),
        front(tmp_path, way.url) as url,
    ):

        async def allocated(call: str) -> dict[str, Any] | None:
            status, answer = await face.post("/allocate", {"call_sid": call})
            return answer["allocation"] if status == 200 else None

        async def spoken(call: str) -> str:
            allocation = await eventually(lambda: allocated(call))
            assert allocation is not None
            stream = f"{url.replace('http', 'ws')}/ws/pod/{allocation['pod_name']}/{call}"
            return await talk(face.session, stream, call, allocation["token"])

        assert await spoken("CA1") == "fn5+"
        asked_s = time.time()
        way.refuse()
        way.cut()
        # nginx counts in whole seconds: by now it believes its answer only because nobody gives another.
        await eventually(lambda: time.time() > asked_s + 2)
        assert await spoken("CA2") == "fn5+"
    await bus.close()
