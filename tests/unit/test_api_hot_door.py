"""The short way to webhooks: it takes what is its own and nothing else, and answers as the long way does."""

from collections.abc import Sequence

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from trunkline.api.hot_door import HotDoor
from trunkline.api.hot_routes import HotRoute
from trunkline.testing.asgi import AsgiClient


async def endpoint(request: Request) -> Response:
    body = await request.body()
    return PlainTextResponse(f"{request.path_params['carrier']} {body.decode()}", 201)


HOT: Sequence[HotRoute] = (
    HotRoute("POST", "/webhooks/{carrier}/status", endpoint, None, {}),
    HotRoute("GET", "/webhooks/{carrier}/answer", endpoint, None, {}),
    HotRoute("POST", "/webhooks/{carrier}/guarded", endpoint, ("router",), {}),
)


def client(routes: Sequence[HotRoute] = HOT) -> AsgiClient:
    return AsgiClient(HotDoor(Starlette(), routes))


async def test_a_hot_route_is_served_with_its_parameter_and_its_body() -> None:
    answer = await client().request("POST", "/webhooks/twilio/status", body=b"ringing")
    assert (answer.status, answer.body) == (201, b"twilio ringing")
    assert (await client().get("/webhooks/exotel/answer")).status == 201


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/webhooks/twilio/status"),
        ("POST", "/webhooks//status"),
        ("POST", "/webhooks/twilio"),
        ("POST", "/webhooks/twilio/status/more"),
        ("POST", "/webhooks/twilio/statuses"),
        ("POST", "/other/twilio/status"),
        ("POST", "/webhooks/twilio/guarded"),
        ("POST", "/"),
    ],
)
async def test_everything_else_goes_the_long_way(method: str, path: str) -> None:
    assert (await client().request(method, path)).status == 404
