"""The routes, one file per resource."""

from fastapi import APIRouter

from trunkline.api.routes import keys, leads, me, merchants, numbers, pools, probes, resellers

ROUTERS: tuple[APIRouter, ...] = (
    leads.router,
    resellers.router,
    merchants.router,
    pools.router,
    numbers.router,
    keys.router,
    me.router,
    probes.router,
)
