"""The lane of the router's hottest requests: what is plainly right is answered there, all else as ever."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from tests.support.waiting import eventually
from tests.support.world import ADMIN_KEY, World, open_world


@pytest.fixture
async def world(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[World]:
    async with open_world(database_url, redis_url, key_prefix, pods=1) as world:
        yield world


async def test_the_fast_path_answers_like_the_full_route(world: World) -> None:
    base = f"{world.platform.base_url}/api/v1"

    async def ask(path: str, body: bytes, key: str = ADMIN_KEY) -> tuple[int, str, str]:
        headers = {
            "Authorization": f"Bearer {key}",
            "Content-Type": "application/json",
            "X-Request-ID": "mine",
        }
        async with session.post(base + path, data=body, headers=headers) as response:
            answer = await response.json()
            if response.status != 200:
                assert answer["request_id"] == response.headers["X-Request-ID"]
            return response.status, str(answer.get("code", "")), response.headers["X-Request-ID"]

    async with aiohttp.ClientSession() as session:
        assert (await ask("/allocate", b"{}", "nobody"))[:2] == (401, "unauthorized")
        assert await ask("/allocate", b"{}") == (400, "invalid_request", "mine")
        assert (await ask("/allocate", b'{"call_sid": "' + b"x" * 10_000 + b'"}'))[:2] == (
            400,
            "invalid_request",
        )
        assert (await ask("/allocate", b"[" * 300_000))[0] == 400
        assert await ask("/allocate", b'{"call_sid": "CA1"}') == (200, "", "mine")
        assert await ask("/allocate", b'{"call_sid": "CA2"}') == (503, "no_pods_available", "mine")
        assert (await ask("/release", b'{"call_sid": "CA1"}'))[0] == 200
        assert (await ask("/release", b'{"call_sid": "CA1"}'))[:2] == (404, "call_not_found")
        async with session.get(
            f"{base}/allocate", headers={"Authorization": f"Bearer {ADMIN_KEY}"}
        ) as response:
            assert response.status == 405

        async def counted() -> bool:
            async with session.get(f"{world.platform.base_url}/metrics") as response:
                text = await response.text()
            return (
                'trunkline_http_requests_total{method="POST",route="/api/v1/allocate",status="200"}' in text
            )

        await eventually(counted)
