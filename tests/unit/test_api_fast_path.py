"""The fast path puts the request's id wherever the ordinary way puts it: header, error body, every log line."""

import asyncio
from collections.abc import AsyncIterator

import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from tests.support.api.asgi import AsgiClient
from trunkline.api import key_format
from trunkline.api.body_guard import BodyRule
from trunkline.api.fast_path import FastPath
from trunkline.api.key_verifier import KeyVerifier, Lookup
from trunkline.api.raw_routes import RawRoute
from trunkline.errors import StoreUnavailable
from trunkline.http.body import bounded_body
from trunkline.schema.keys import ApiKey
from trunkline.telemetry import metrics
from trunkline.testing.clock import ManualClock


async def bound_ids(_request: Request) -> Response:
    return PlainTextResponse(str(structlog.contextvars.get_contextvars().get("request_id")))


async def fail(_request: Request) -> Response:
    with structlog.testing.capture_logs([structlog.contextvars.merge_contextvars]) as lines:
        structlog.get_logger().warning("router.no_pods")
    raise RuntimeError(f"logged with {lines[0].get('request_id')}")


async def read(request: Request) -> Response:
    return PlainTextResponse(str(await bounded_body(request, 1000)))


async def drops() -> AsyncIterator[bytes]:
    """Each comes soon, and they never end."""
    while True:
        await asyncio.sleep(0)
        yield b""


async def nobody(_proof: bytes) -> ApiKey | None:
    return None


async def unavailable(_proof: bytes) -> ApiKey | None:
    raise StoreUnavailable("away")


def client(read_timeout_s: float = 5, look_up: Lookup = nobody) -> AsgiClient:
    routes = [
        RawRoute("POST", "/api/v1/keyed", bound_ids, ("admin",), {}),
        RawRoute("POST", "/api/v1/allocate", bound_ids, None, {}),
        RawRoute("POST", "/api/v1/release", fail, None, {}),
        RawRoute("POST", "/webhooks/{carrier}/status", read, None, {}),
    ]
    verifier = KeyVerifier(look_up, ManualClock(), fresh_s=1, stale_s=1)
    return AsgiClient(FastPath(Starlette(), verifier, routes, body=BodyRule(1000, read_timeout_s)))


async def test_the_request_id_is_in_the_response_header_and_the_log_context() -> None:
    # As the server has it: each request is a task of its own.
    asked = client().post("/api/v1/allocate", {}, headers={"X-Request-ID": "trace-1"})
    answer = await asyncio.create_task(asked)
    assert answer.headers["x-request-id"] == "trace-1"
    assert answer.body == b"trace-1"
    assert "request_id" not in structlog.contextvars.get_contextvars()


async def test_a_request_without_a_request_id_gets_one() -> None:
    answer = await client().post("/api/v1/allocate", {})
    assert answer.body.decode() == answer.headers["x-request-id"] != ""


async def test_a_failure_carries_the_request_id_in_its_body_and_log_line() -> None:
    with structlog.testing.capture_logs([structlog.contextvars.merge_contextvars]) as lines:
        answer = await client().post("/api/v1/release", {}, headers={"X-Request-ID": "trace-2"})
    assert (answer.status, answer.json()["request_id"]) == (500, "trace-2")
    (line,) = [line for line in lines if line["event"] == "request.failed"]
    assert line["request_id"] == "trace-2"
    assert str(line["exc_info"]) == "logged with trace-2"


async def test_the_body_timeout_counts_for_the_whole_body() -> None:
    async with asyncio.timeout(30):
        answer = await client(0.01).request("POST", "/webhooks/twilio/status", body=drops())
    assert (answer.status, answer.json()["code"]) == (408, "body_too_slow")


async def test_a_key_that_cannot_be_looked_up_is_an_error_like_any_other() -> None:
    """With its id in the header, a line in the log, and a line in the metrics."""
    labels = {"method": "POST", "route": "/api/v1/keyed", "status": "503"}
    before = metrics.REGISTRY.get_sample_value("trunkline_http_requests_total", labels) or 0.0
    headers = {"X-Request-ID": "trace-3", "Authorization": f"Bearer {key_format.mint()}"}
    with structlog.testing.capture_logs() as lines:
        answer = await client(look_up=unavailable).post("/api/v1/keyed", {}, headers=headers)
    assert (answer.status, answer.json()["code"]) == (503, "store_unavailable")
    assert answer.headers["x-request-id"] == answer.json()["request_id"] == "trace-3"
    assert [line["event"] for line in lines] == ["store.unavailable"]
    assert metrics.REGISTRY.get_sample_value("trunkline_http_requests_total", labels) == before + 1
