"""The route table of the whole platform, as it is wired: documented, and closed to those who may not."""

import re
from pathlib import Path

import pytest

from tests.support.api.asgi import AsgiClient
from tests.support.world import ADMIN_KEY, World

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "api.md"
HEADING = re.compile(r"^### `([A-Z]+) (/\S*)`$", re.MULTILINE)
OPEN = {"/health", "/ready", "/metrics"}
# Asked by carriers, who sign and have no key.
SIGNED = {f"/api/v1/{carrier}/allocate" for carrier in ("twilio", "plivo", "exotel")}


def operations(world: World) -> set[tuple[str, str]]:
    paths = world.platform.http.api.openapi()["paths"]
    return {(method.upper(), path) for path, methods in paths.items() for method in methods}


def client(world: World, key: str | None) -> AsgiClient:
    return AsgiClient(world.platform.http.api, key)


async def test_the_page_documents_every_route_of_the_platform_and_no_other(world: World) -> None:
    documented = HEADING.findall(DOCS.read_text(encoding="utf-8"))
    assert len(documented) == len(set(documented))
    assert set(documented) == operations(world)


async def test_only_probe_routes_answer_without_a_key_or_signature(
    world: World, subtests: pytest.Subtests
) -> None:
    for method, path in sorted(operations(world)):
        with subtests.test(method=method, path=path):
            answer = await client(world, None).request(method, path.replace("{carrier}", "twilio"), json={})
            if path in OPEN:
                assert answer.status == 200
            elif path.startswith("/webhooks/") or path in SIGNED:
                assert answer.status == 403, "unsigned"
            else:
                assert (answer.status, answer.json()["code"]) == (401, "unauthorized")


async def test_router_routes_refuse_tenant_keys_and_keys_without_the_scope(
    world: World, subtests: pytest.Subtests
) -> None:
    body = {"name": "k", "scopes": ["router"], "merchant_id": "m"}
    tenant = (await client(world, ADMIN_KEY).post("/api/v1/keys", body)).json()["key"]
    body = {"name": "k", "scopes": ["read"]}
    reader = (await client(world, ADMIN_KEY).post("/api/v1/keys", body)).json()["key"]
    document = world.platform.http.api.openapi()["paths"]
    of_router = [(m.upper(), p) for p, ms in document.items() for m, o in ms.items() if "router" in o["tags"]]
    assert len(of_router) >= 5
    for method, path in of_router:
        for key in (tenant, reader):
            with subtests.test(method=method, path=path, key=key[:6]):
                answer = await client(world, key).request(method, path, json={})
                assert answer.status == 403
