"""The routes, one file per resource."""

from fastapi import APIRouter

from trunkline.api.routes import (
    alarms,
    audit,
    controls,
    flags,
    keys,
    leads,
    me,
    merchants,
    numbers,
    pools,
    probes,
    resellers,
)

ROUTERS: tuple[APIRouter, ...] = (
    leads.router,
    resellers.router,
    merchants.router,
    pools.router,
    numbers.router,
    keys.router,
    controls.router,
    flags.router,
    alarms.router,
    audit.router,
    me.router,
    probes.router,
)
