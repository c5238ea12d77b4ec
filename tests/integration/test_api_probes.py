import asyncio
from collections.abc import Awaitable, Callable

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from tests.support.api.world import expect, open_api
from trunkline.api.deps import ApiLimits, HealthProbe
from trunkline.api.raw_routes import RawRoute
from trunkline.store.database import connect
from trunkline.telemetry import metrics

Check = Callable[[], Awaitable[None]]


async def well() -> None:
    pass


async def broken() -> None:
    raise RuntimeError("cannot reach valkey.internal:6379")


async def hanging() -> None:
    await asyncio.Event().wait()


async def test_health_answers_without_checking_dependencies(database_url: str) -> None:
    async with open_api(
        database_url, populate=False, probes={"postgres": HealthProbe(broken, True)}
    ) as world:
        await world.database.close()
        assert expect(await world.anybody.get("/health"), 200)["status"] == "ok"


async def test_a_process_is_ready_when_every_dependency_is_healthy(database_url: str) -> None:
    probes = {"postgres": HealthProbe(well, required=True), "valkey": HealthProbe(well, required=False)}
    async with open_api(database_url, populate=False, probes=probes) as world:
        ready = expect(await world.anybody.get("/ready"), 200)
    assert ready["status"] == "ready"
    assert ready["checks"]["valkey"] == {"ok": True, "required": False, "error": None}


async def test_without_an_optional_dependency_a_process_is_degraded_but_ready(database_url: str) -> None:
    probes = {"postgres": HealthProbe(well, required=True), "valkey": HealthProbe(broken, required=False)}
    async with open_api(database_url, populate=False, probes=probes) as world:
        answer = await world.anybody.get("/ready")
    ready = expect(answer, 200)
    assert ready["status"] == "degraded"
    assert ready["checks"]["valkey"] == {"ok": False, "required": False, "error": "unavailable"}
    assert b"internal" not in answer.body


async def test_without_a_required_dependency_a_process_is_not_ready(database_url: str) -> None:
    probes = {"postgres": HealthProbe(hanging, required=True), "valkey": HealthProbe(well, required=False)}
    limits = ApiLimits(probe_timeout_s=0.01)
    async with open_api(database_url, populate=False, probes=probes, limits=limits) as world:
        answer = await world.anybody.get("/ready")
    refused = expect(answer, 503)
    assert (refused["success"], refused["code"], refused["status"]) == (False, "not_ready", "not ready")
    assert refused["request_id"] == answer.headers["x-request-id"]
    assert "postgres" in refused["error"]
    assert refused["checks"]["postgres"]["error"] == "no answer within 0.01 s"
    assert refused["checks"]["valkey"]["ok"] is True


@pytest.mark.parametrize(("postgres", "valkey"), [(well, broken), (broken, well)])
async def test_one_alternative_is_enough(database_url: str, postgres: Check, valkey: Check) -> None:
    probes = {
        "postgres": HealthProbe(postgres, is_alternative=True),
        "valkey": HealthProbe(valkey, is_alternative=True),
    }
    async with open_api(database_url, populate=False, probes=probes) as world:
        assert expect(await world.anybody.get("/ready"), 200)["status"] == "degraded"


async def test_without_any_alternative_a_process_is_not_ready(database_url: str) -> None:
    probes = {name: HealthProbe(broken, is_alternative=True) for name in ("postgres", "valkey")}
    async with open_api(database_url, populate=False, probes=probes) as world:
        refused = expect(await world.anybody.get("/ready"), 503)
    assert refused["error"] == "Not ready: postgres, valkey cannot be used. See checks."


async def test_metrics_name_routes_by_their_template(database_url: str) -> None:
    async with open_api(database_url) as world:
        for lead_id in ("x", "y"):
            await world.admin.get(f"/api/v1/leads/{lead_id}")
        await world.admin.get("/no/such/page")
        answer = await world.anybody.get("/metrics", headers={"accept": "text/plain"})
    assert answer.headers["content-type"].startswith("text/plain")
    labels = ('method="GET"', 'route="/api/v1/leads/{lead_id}"', 'status="404"')
    assert f"trunkline_http_requests_total{{{','.join(labels)}}}" in answer.body.decode()
    assert b"/no/such/page" not in answer.body


async def test_metrics_show_how_many_connections_to_postgres_are_in_use(database_url: str) -> None:
    database = await connect(database_url, pool_size=3)
    metrics.watch_pool(database.pool)
    async with database.connection(), database.connection():
        page = metrics.render()[0].decode()
    await database.close()
    shown = {
        state: f'trunkline_db_pool_connections{{state="{state}"}}' for state in ("idle", "in_use", "max")
    }
    assert f"{shown['in_use']} 2.0" in page
    assert f"{shown['idle']} 1.0" in page
    assert f"{shown['max']} 3.0" in page


async def allocate(request: Request) -> Response:
    who = getattr(request.state, "principal", None)
    return PlainTextResponse("open" if who is None else who.name)


def counted(route: str) -> float:
    return (
        metrics.REGISTRY.get_sample_value(
            "trunkline_http_requests_total", {"method": "POST", "route": route, "status": "200"}
        )
        or 0.0
    )


async def test_a_hot_route_is_guarded_documented_and_measured_like_any_other(database_url: str) -> None:
    operation = {"summary": "Allocate", "tags": ["router"], "responses": {"200": {"description": "A pod."}}}
    hot = (
        RawRoute("POST", "/api/v1/allocate", allocate, ("router",), operation),
        RawRoute("POST", "/api/v1/calls/{call_sid}/outcome", allocate, None, operation),
    )
    async with open_api(database_url, raw_routes=hot) as world:
        before = counted("/api/v1/allocate")
        assert (await world.tenant("a1", "router").post("/api/v1/allocate", {})).body == b"test"
        assert counted("/api/v1/allocate") == before + 1
        assert (
            expect(await world.tenant("a1", "read").post("/api/v1/allocate", {}), 403)["code"]
            == "scope_missing"
        )
        expect(await world.anybody.post("/api/v1/allocate", {}), 401)
        assert expect(await world.admin.get("/api/v1/allocate"), 405)["code"] == "method_not_allowed"
        assert (await world.anybody.post("/api/v1/calls/CA1/outcome", {})).body == b"open"
        paths = world.app.openapi()["paths"]
        assert paths["/api/v1/allocate"]["post"]["security"] == [{"apiKey": []}]
        assert "security" not in paths["/api/v1/calls/{call_sid}/outcome"]["post"]
