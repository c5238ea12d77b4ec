"""Merchants' tiers: Postgres is the source of truth, Valkey gets changes at once. And the URLs to enter at carriers."""

from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from trunkline.api import router_bodies
from trunkline.api.auth import require_platform
from trunkline.api.raw_routes import Endpoint, RawRoute, json_response
from trunkline.api.router_bodies import BadRequest
from trunkline.api.router_carriers import CALL_FIELDS, allocate_url
from trunkline.api.router_operations import OPERATIONS
from trunkline.api.store import Store
from trunkline.bus import router_manager
from trunkline.bus.router import RouterBus
from trunkline.errors import BusUnavailable
from trunkline.schema.router import MerchantTier, MerchantTiers, NewMerchantTier, RouterUrls
from trunkline.store import router as store
from trunkline.telemetry import get_logger
from trunkline.telephony.callbacks import CallbackKeys
from trunkline.telephony.directory import CarrierDirectory

log = get_logger(__name__)

PATH = "/api/v1/router/merchants"
BODY_MAX_BYTES = 4096


@dataclass(frozen=True, slots=True)
class MerchantApi:
    store: Store
    bus: RouterBus
    carriers: CarrierDirectory
    callback_keys: CallbackKeys
    public_base_url: str

    def raw_routes(self) -> list[RawRoute]:
        endpoints: dict[str, Endpoint] = {
            f"GET {PATH}": self.list_all,
            f"PUT {PATH}/{{merchant_id}}": self.put,
            f"DELETE {PATH}/{{merchant_id}}": self.remove,
            "GET /api/v1/router/urls": self.urls,
        }
        return [_route(label, endpoint) for label, endpoint in endpoints.items()]

    async def list_all(self, request: Request) -> Response:
        async with self.store.reading() as conn:
            merchants = await store.merchants(conn)
        return json_response(
            200, MerchantTiers([_tier(merchant, config) for merchant, config in merchants.items()])
        )

    async def put(self, request: Request) -> Response:
        merchant_id = request.path_params["merchant_id"]
        try:
            router_bodies.short(merchant_id, "merchant_id")
            body = router_bodies.decode((await request.body())[:BODY_MAX_BYTES], NewMerchantTier)
            config = _config(body, merchant_id)
        except BadRequest as error:
            return _refused(error)
        async with self.store.autocommit() as conn:
            await store.set_merchant(conn, merchant_id, config)
        await self._make_live(merchant_id, config)
        return json_response(200, _tier(merchant_id, config))

    async def remove(self, request: Request) -> Response:
        merchant_id = request.path_params["merchant_id"]
        async with self.store.autocommit() as conn:
            await store.remove_merchant(conn, merchant_id)
        await self._make_live(merchant_id, "")
        return Response(status_code=204)

    async def urls(self, request: Request) -> Response:
        merchant_id = request.query_params.get("merchant_id", "")
        account = request.query_params.get("account", "default")
        urls: dict[str, str] = {}
        for name in CALL_FIELDS:
            if carrier := self.carriers.find(name, account):
                url = allocate_url(self.public_base_url, self.callback_keys, name, account, merchant_id)
                urls[name] = carrier.entry_url(url)
        return json_response(200, RouterUrls(urls))

    async def _make_live(self, merchant_id: str, config: str) -> None:
        """Write to Valkey at once; if it is away, the pool manager's next reconcile does it."""
        try:
            await router_manager.set_merchant(self.bus, merchant_id, config)
        except BusUnavailable as error:
            log.warning("router.merchant_not_live_yet", merchant_id=merchant_id, error=str(error))


def _config(body: NewMerchantTier, merchant_id: str) -> str:
    if not body.tier or len(body.tier) > 64 or not body.tier.isprintable():
        raise BadRequest("tier is required, up to 64 characters", "tier")
    if len(body.pool) > 64 or not (body.pool.isprintable() or not body.pool):
        raise BadRequest("pool must be up to 64 characters", "pool")
    pool = body.pool or (merchant_id if body.tier == "dedicated" else "")
    content = {"tier": body.tier, "pool": pool} if pool else {"tier": body.tier}
    return msgspec.json.encode(content).decode()


def _tier(merchant_id: str, config: str) -> MerchantTier:
    """A config that was written by hand may have any form."""
    try:
        content = msgspec.json.decode(config, type=dict[str, Any])
    except msgspec.DecodeError:
        content = {}
    return MerchantTier(merchant_id, content.get("tier", ""), content.get("pool", ""))


def _route(label: str, endpoint: Endpoint) -> RawRoute:
    async def of_the_platform(request: Request) -> Response:
        require_platform(request.state.principal, "change the router")
        return await endpoint(request)

    method, path = label.split()
    return RawRoute(method, path, of_the_platform, ("admin",), OPERATIONS[label])


def _refused(error: BadRequest) -> Response:
    content = {
        "success": False,
        "error": error.message,
        "code": "invalid_request",
        "fields": [{"field": error.field, "error": error.message}],
    }
    return json_response(400, content)
