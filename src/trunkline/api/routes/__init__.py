"""The routes, one file per resource."""

from fastapi import APIRouter

from trunkline.api.routes import (
    accounts,
    alarms,
    audit,
    controls,
    do_not_call,
    flags,
    jobs,
    keys,
    leads,
    leads_bulk,
    me,
    merchants,
    numbers,
    policy,
    pools,
    probes,
    resellers,
    webhook_endpoints,
    why,
)

ROUTERS: tuple[APIRouter, ...] = (
    leads_bulk.router,
    leads.router,
    why.router,
    policy.router,
    do_not_call.router,
    resellers.router,
    merchants.router,
    pools.router,
    numbers.router,
    accounts.router,
    keys.router,
    controls.router,
    flags.router,
    alarms.router,
    audit.router,
    jobs.router,
    webhook_endpoints.router,
    me.router,
    probes.router,
)
