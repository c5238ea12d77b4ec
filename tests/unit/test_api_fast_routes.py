"""The short way of the hottest requests: it takes what is its own and nothing else."""

from collections.abc import Sequence
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from trunkline.api.fast_path import FastRouter
from trunkline.api.raw_routes import RawRoute


async def endpoint(_request: Request) -> Response:
    return Response()


HOT: Sequence[RawRoute] = (
    RawRoute("POST", "/webhooks/{carrier}/status", endpoint, None, {}),
    RawRoute("GET", "/webhooks/{carrier}/answer", endpoint, None, {}),
    RawRoute("POST", "/api/v1/allocate", endpoint, ("router",), {}),
    RawRoute("POST", "/api/v1/pods/{name}/heartbeat", endpoint, ("router",), {}),
    RawRoute("DELETE", "/api/v1/drain/{name}", endpoint, ("router",), {}),
)


def scope(method: str, path: str) -> dict[str, Any]:
    return {"type": "http", "method": method, "path": path}


@pytest.mark.parametrize(
    ("method", "path", "names"),
    [
        ("POST", "/webhooks/twilio/status", {"carrier": "twilio"}),
        ("GET", "/webhooks/exotel/answer", {"carrier": "exotel"}),
        ("POST", "/api/v1/allocate", {}),
    ],
)
def test_a_hot_route_is_found_with_the_name_in_its_path(
    method: str, path: str, names: dict[str, str]
) -> None:
    asked = scope(method, path)
    found = FastRouter(HOT).find(asked)
    assert found is not None
    assert found.method == method
    assert asked.get("path_params", {}) == names


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/webhooks/twilio/status"),
        ("POST", "/webhooks//status"),
        ("POST", "/webhooks/twilio"),
        ("POST", "/webhooks/twilio/status/more"),
        ("POST", "/webhooks/twilio/statuses"),
        ("POST", "/other/twilio/status"),
        ("GET", "/api/v1/allocate"),
        ("POST", "/api/v1/allocate/"),
        ("POST", "/api/v1/pods/a/heartbeat"),
        ("DELETE", "/api/v1/drain/a"),
        ("POST", "/"),
        ("POST", ""),
    ],
)
def test_other_methods_and_paths_are_not_found_by_the_fast_router(method: str, path: str) -> None:
    asked = scope(method, path)
    assert FastRouter(HOT).find(asked) is None
    assert "path_params" not in asked
