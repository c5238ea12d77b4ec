"""The API behind its real server, with real sockets, and a database that goes away."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest

from tests.support.api.http_server import serve
from tests.support.api.world import ADMIN_KEY, open_api
from tests.support.faults.proxy import TcpProxy
from tests.support.waiting import eventually
from trunkline.api.body_guard import BodyRule
from trunkline.api.deps import ApiLimits

LEADS = "/api/v1/leads"
LEAD = {"request_id": "r1", "merchant_id": "a1", "phone": "+14155550123"}
KEY = {"Authorization": f"Bearer {ADMIN_KEY}"}


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(headers=KEY) as session:
        yield session


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield b"x" * 65536


async def test_a_body_without_an_announced_length_is_cut_off_at_the_limit(
    database_url: str, http: aiohttp.ClientSession
) -> None:
    async with open_api(database_url) as world, serve(world.app) as url:
        try:
            async with http.post(
                url + LEADS, data=endless(), headers={"Content-Type": "application/json"}
            ) as answer:
                assert answer.status == 413
                assert (await answer.json())["code"] == "body_too_large"
        except aiohttp.ClientOSError:
            pass  # the server hung up while we were still sending, which is the point
        async with http.get(f"{url}/api/v1/me") as answer:
            assert answer.status == 200


async def test_a_body_slower_than_its_timeout_is_answered_408(database_url: str) -> None:
    limits = ApiLimits(body=BodyRule(bytes_max=1000, timeout_s=0.05))
    async with open_api(database_url, limits=limits) as world, serve(world.app) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"POST {LEADS} HTTP/1.1\r\nHost: x\r\nAuthorization: {KEY['Authorization']}\r\n"
            'Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"request'.encode()
        )
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"body_too_slow" in answer


@pytest.mark.parametrize("fault", ["refused", "black hole"])
async def test_the_api_answers_503_without_postgres_and_recovers(
    database_url: str, http: aiohttp.ClientSession, fault: str
) -> None:
    async with TcpProxy.before(database_url) as proxy:
        limits = ApiLimits(store_timeout_s=0.3)
        async with open_api(proxy.url, limits=limits) as world, serve(world.app) as url:

            async def knows_the_key() -> bool:
                async with http.get(f"{url}/api/v1/me") as answer:
                    return answer.status == 200

            async def takes_a_lead() -> bool:
                async with http.post(url + LEADS, json=LEAD) as answer:
                    return answer.status in (200, 201)

            await eventually(knows_the_key)
            if fault == "refused":
                proxy.refuse()
                proxy.cut()
            else:
                proxy.black_hole()
            for _ in range(3):
                async with http.post(url + LEADS, json=LEAD) as answer:
                    assert answer.status == 503
                    assert int(answer.headers["Retry-After"]) > 0
                    assert (await answer.json())["code"] == "store_unavailable"
            async with http.get(f"{url}/api/v1/me") as answer:
                assert answer.status == 200, "a known key needs no database"
            async with http.get(f"{url}/health") as answer:
                assert answer.status == 200
            await proxy.heal()
            await eventually(takes_a_lead, timeout_s=20)


async def test_a_lead_sent_again_after_a_lost_commit_reply_is_one_lead(
    database_url: str, http: aiohttp.ClientSession
) -> None:
    async with (
        TcpProxy.before(database_url) as proxy,
        open_api(proxy.url) as world,
        serve(world.app) as url,
    ):
        async with http.post(url + LEADS, json=LEAD | {"request_id": "warm"}) as answer:
            assert answer.status == 201
        proxy.swallow_reply(after=b"+14155550199")
        lost = LEAD | {"request_id": "lost", "phone": "+14155550199"}
        async with http.post(url + LEADS, json=lost) as answer:
            assert answer.status == 503
        await proxy.swallowed()
        async with http.post(url + LEADS, json=lost) as answer:
            assert answer.status == 200, "it was taken in the first time"
        async with http.get(url + LEADS, params={"phone": "+14155550199"}) as answer:
            assert len((await answer.json())["items"]) == 1
