"""The API on a real database, with two resellers to try it on.

    async with open_api(database_url) as world:
        answer = await world.merchant("a1").post("/api/v1/leads", {…})

Reseller `a` has the merchants `a1` and `a2`, reseller `b` has `b1`. There is a pool of the platform, `shared`, one of
each reseller, `a-pool` and `b-pool`, and one of each merchant, `a1-pool` and so on, with a number in each.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI

from trunkline.api.admin_key import ensure_admin_key
from trunkline.api.application import create_api
from trunkline.api.deps import ApiDeps, ApiLimits, Probe
from trunkline.api.hot_routes import HotRoute
from trunkline.clock import ManualClock, SystemClock
from trunkline.store.database import Database, connect
from trunkline.store.leads import Lead
from trunkline.telemetry import metrics
from trunkline.testing.asgi import Answer, AsgiClient

ADMIN_KEY = "admin-key-of-the-tests"
MERCHANTS = {"a1": "a", "a2": "a", "b1": "b"}
POOLS: Mapping[str, Mapping[str, str]] = {
    "shared": {},
    "a-pool": {"reseller_id": "a"},
    "b-pool": {"reseller_id": "b"},
    "a1-pool": {"merchant_id": "a1"},
    "a2-pool": {"merchant_id": "a2"},
    "b1-pool": {"merchant_id": "b1"},
}


@dataclass
class ApiWorld:
    database: Database
    app: FastAPI
    clock: ManualClock
    accepted: list[Lead]
    numbers: dict[str, str] = field(default_factory=dict)
    keys: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def anybody(self) -> AsgiClient:
        return AsgiClient(self.app)

    @property
    def admin(self) -> AsgiClient:
        return AsgiClient(self.app, ADMIN_KEY)

    def tenant(self, tenant_id: str, scope: str = "admin") -> AsgiClient:
        """A client with a key of that reseller or merchant."""
        return AsgiClient(self.app, self.keys[tenant_id, scope])

    async def make_key(self, *scopes: str, **owner: str) -> str:
        made = await self.admin.post("/api/v1/keys", {"name": "test", "scopes": list(scopes), **owner})
        return str(expect(made, 201)["key"])

    async def make_lead(self, merchant_id: str, request_id: str = "r1", **more: object) -> dict[str, Any]:
        body = {"request_id": request_id, "merchant_id": merchant_id, "phone": "+14155550123", **more}
        return expect(await self.admin.post("/api/v1/leads", body), 201)

    async def populate(self) -> None:
        for reseller_id in ("a", "b"):
            await self._make("resellers", id=reseller_id, name=f"Reseller {reseller_id}")
            for scope in ("admin", "read"):
                self.keys[reseller_id, scope] = await self.make_key(scope, reseller_id=reseller_id)
        for merchant_id, reseller_id in MERCHANTS.items():
            await self._make("merchants", id=merchant_id, reseller_id=reseller_id, name=merchant_id)
            for scope in ("admin", "leads", "router", "read"):
                self.keys[merchant_id, scope] = await self.make_key(scope, merchant_id=merchant_id)
        await self._make_numbers()
        for merchant_id in MERCHANTS:
            change = {"default_pool": f"{merchant_id}-pool"}
            expect(await self.admin.patch(f"/api/v1/merchants/{merchant_id}", change), 200)

    async def _make_numbers(self) -> None:
        for index, (pool_id, owner) in enumerate(POOLS.items()):
            await self._make("pools", id=pool_id, name=pool_id, **owner)
            number = await self._make(
                "numbers", e164=f"+1415555010{index}", pool=pool_id, carrier="twilio", max_channels=5
            )
            self.numbers[pool_id] = number["id"]

    async def _make(self, kind: str, **body: object) -> dict[str, Any]:
        return expect(await self.admin.post(f"/api/v1/{kind}", body), 201)


def expect(answer: Answer, status: int) -> dict[str, Any]:
    """The body of an answer that has this status."""
    assert answer.status == status, f"{answer.status}: {answer.body.decode(errors='replace')}"
    body: dict[str, Any] = answer.json() if answer.body else {}
    return body


@asynccontextmanager
async def open_api(
    database_url: str,
    *,
    populate: bool = True,
    limits: ApiLimits | None = None,
    hot_routes: tuple[HotRoute, ...] = (),
    probes: Mapping[str, Probe] | None = None,
) -> AsyncIterator[ApiWorld]:
    database = await connect(database_url, pool_size=4)
    clock = ManualClock(SystemClock().now())
    accepted: list[Lead] = []

    async def on_lead_accepted(lead: Lead) -> None:
        accepted.append(lead)

    deps = ApiDeps(
        database=database,
        clock=clock,
        on_lead_accepted=on_lead_accepted,
        probes=probes or {},
        render_metrics=metrics.render,
        limits=limits or ApiLimits(),
    )
    world = ApiWorld(database, create_api(deps, hot_routes), clock, accepted)
    try:
        await ensure_admin_key(database, ADMIN_KEY)
        if populate:
            await world.populate()
        yield world
    finally:
        await database.close()
