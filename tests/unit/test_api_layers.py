"""The layers around the routes, with an application of a few lines inside."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.support.api.asgi import AsgiClient
from trunkline.api import errors
from trunkline.api.body_guard import BodyGuard, BodyRule
from trunkline.api.request_context import RequestContext
from trunkline.errors import StoreUnavailable

SMALL = BodyRule(bytes_max=10, timeout_s=60)
IMPATIENT = BodyRule(bytes_max=10, timeout_s=0.01)
LARGE = BodyRule(bytes_max=1000, timeout_s=60)


async def echo(request: Request) -> Response:
    return PlainTextResponse(await request.body())


async def fail(_request: Request) -> Response:
    raise RuntimeError("the password is hunter2")


async def lose_store(_request: Request) -> Response:
    raise StoreUnavailable("postgres at 10.0.0.7 is away")


async def fail_halfway(_request: Request) -> Response:
    async def half() -> AsyncIterator[bytes]:
        yield b"half"
        raise RuntimeError("broken")

    return StreamingResponse(half())


async def bound_ids(_request: Request) -> Response:
    return PlainTextResponse(str(structlog.contextvars.get_contextvars().get("request_id")))


@pytest.fixture
def client() -> AsgiClient:
    app = Starlette(
        routes=[
            Route("/echo", echo, methods=["POST"]),
            Route("/upload/slow", echo, methods=["POST"]),
            Route("/upload", echo, methods=["POST"]),
            Route("/fail", fail),
            Route("/lose-store", lose_store),
            Route("/fail-halfway", fail_halfway),
            Route("/bound-ids", bound_ids),
        ],
        middleware=[
            Middleware(RequestContext),
            Middleware(BodyGuard, rule=SMALL, exceptions={"/upload": LARGE, "/upload/slow": IMPATIENT}),
        ],
        exception_handlers={HTTPException: errors.handle},
    )
    return AsgiClient(app)


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def never() -> AsyncIterator[bytes]:
    yield b"a"
    await asyncio.Event().wait()


async def test_a_sane_request_id_is_kept_and_echoed(client: AsgiClient) -> None:
    answer = await client.get("/bound-ids", headers={"X-Request-ID": "trace-1.2:3_x"})
    assert answer.headers["x-request-id"] == "trace-1.2:3_x"
    assert answer.body == b"trace-1.2:3_x"


@pytest.mark.parametrize("insane", ["", "a b", "x" * 129, "a\tb", "<script>", "ä"])
async def test_any_other_request_id_is_replaced(client: AsgiClient, insane: str) -> None:
    answer = await client.get("/bound-ids", headers={"X-Request-ID": insane})
    assert answer.headers["x-request-id"] not in ("", insane)
    assert answer.body.decode() == answer.headers["x-request-id"]


async def test_a_500_does_not_reveal_its_cause(client: AsgiClient) -> None:
    answer = await client.get("/fail")
    assert answer.status == 500
    body = answer.json()
    assert body.pop("request_id") == answer.headers["x-request-id"]
    assert body["success"] is False
    assert body["code"] == "internal_error"
    assert b"hunter2" not in answer.body
    assert b"RuntimeError" not in answer.body


async def test_an_unavailable_store_is_503_with_retry_after(client: AsgiClient) -> None:
    answer = await client.get("/lose-store")
    assert answer.status == 503
    assert int(answer.headers["retry-after"]) > 0
    assert answer.json()["code"] == "store_unavailable"
    assert b"10.0.0.7" not in answer.body


async def test_a_response_that_fails_halfway_is_aborted_not_completed(client: AsgiClient) -> None:
    with pytest.raises(RuntimeError, match="broken"):
        await client.get("/fail-halfway")


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nowhere", 404), ("GET", "/echo", 405)])
async def test_errors_of_the_framework_have_our_shape(
    client: AsgiClient, method: str, path: str, status: int
) -> None:
    answer = await client.request(method, path)
    assert answer.status == status
    assert set(answer.json()) == {"success", "error", "code", "request_id"}


async def test_a_body_up_to_the_limit_passes(client: AsgiClient) -> None:
    assert (await client.request("POST", "/echo", body=b"0123456789")).body == b"0123456789"
    assert (await client.request("POST", "/echo", body=chunks(b"01234", b"56789"))).body == b"0123456789"


async def test_a_body_announced_as_too_large_is_refused_unread(client: AsgiClient) -> None:
    body = chunks(b"01234", b"567890")
    answer = await client.request("POST", "/echo", body=body, headers={"Content-Length": "11"})
    assert (answer.status, answer.json()["code"]) == (413, "body_too_large")
    assert answer.headers["connection"] == "close"
    assert await anext(body) == b"01234", "the body was read"


async def test_a_chunked_body_is_refused_as_soon_as_it_is_too_large(client: AsgiClient) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"012345"
        pytest.fail("more was read than needed")

    answer = await client.request("POST", "/echo", body=endless())
    assert (answer.status, answer.json()["code"]) == (413, "body_too_large")


async def test_a_path_may_have_a_limit_of_its_own_and_the_longest_prefix_counts(client: AsgiClient) -> None:
    assert (await client.request("POST", "/upload", body=b"x" * 1000)).status == 200
    assert (await client.request("POST", "/upload", body=b"x" * 1001)).status == 413
    assert (await client.request("POST", "/upload/slow", body=b"x" * 11)).status == 413


async def test_a_body_without_an_end_is_answered_408(client: AsgiClient) -> None:
    answer = await client.request("POST", "/upload/slow", body=never())
    assert (answer.status, answer.json()["code"]) == (408, "body_too_slow")
    assert answer.headers["connection"] == "close"


async def test_a_failure_is_logged_with_its_cause_and_the_id_of_its_request(client: AsgiClient) -> None:
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        answer = await client.get("/fail")
    [line] = [line for line in lines if line["event"] == "request.failed"]
    assert line["request_id"] == answer.headers["x-request-id"]
    assert line["log_level"] == logging.getLevelName(logging.ERROR).lower()
    assert "hunter2" in str(line["exc_info"])
