"""The present state in one response: for the console, for `trunkline top`, for a wall display."""

from dataclasses import replace
from datetime import datetime, timedelta

from trunkline.api.auth import ReadKey
from trunkline.api.deps import Api, Deps
from trunkline.api.resources import Routes
from trunkline.campaigns.progress import ends_at, shares
from trunkline.control import inputs
from trunkline.control.waits import Cause, everybody, until
from trunkline.schema.overview import Overview, WaitingQueue
from trunkline.store import abandonment, live
from trunkline.store.database import Connection
from trunkline.store.live import FlowPace, Recent
from trunkline.store.tenants import Tenant
from trunkline.store.waiting import WaitingFlow

router = Routes("/overview", "operation")

WINDOW_S = 300
SLICE_S = 5
# A process reports its presence every 5 s.
SILENT_S = 20.0


@router.get("", summary="Get the live overview")
async def get_overview(who: ReadKey, api: Deps) -> Overview:
    """Calls, channels, pace, lateness, queues and processes. It costs the same with a million leads as with ten."""
    tenant = who.tenant
    async with api.store.reading() as connection:
        recent = await live.recent(connection, tenant, window_s=WINDOW_S, slice_s=SLICE_S)
        processes = await live.processes(connection) if tenant.is_platform else []
        return Overview(
            at=api.deps.clock.now(),
            calls=await live.calls(connection, tenant),
            channels=await live.channels(connection, tenant),
            window_s=WINDOW_S,
            slice_s=SLICE_S,
            since=_since(recent, api.deps.clock.now(), exact=tenant.is_platform),
            slices=recent.slices,
            endings=recent.endings,
            queues=await _queues(connection, api, tenant),
            abandonment=shares(await abandonment.measured_by_tenant(connection, tenant)),
            leads_about=await live.lead_estimate(connection) if tenant.is_platform else None,
            processes=[
                replace(each, silent_s=round(each.silent_s, 1), is_alive=each.silent_s < SILENT_S)
                for each in processes
            ],
            is_led=any(each.is_leader for each in processes) if tenant.is_platform else None,
        )


async def _queues(connection: Connection, api: Api, tenant: Tenant) -> list[WaitingQueue]:
    queues = await live.queues(connection, tenant)
    view = api.deps.dispatch
    named = [(queue.pool, queue.merchant_id, queue.campaign_id) for queue in queues]
    waits = await inputs.waits(
        connection,
        view.slots if view.agents.are_ours else None,
        view.includes or everybody,
        overdue_s=0,
        named=named,
    )
    causes = {
        (flow.pool_id, flow.merchant_id, flow.campaign_id): (flow, why) for flow, why in waits.causes.items()
    }
    without_channel = [name for name, (_, why) in causes.items() if why is Cause.CHANNELS]
    paces = await live.paces(connection, without_channel) if without_channel else {}
    now = api.deps.clock.now()
    return [
        _queue(queue, causes.get(name), paces.get(name), now)
        for queue, name in zip(queues, named, strict=True)
    ]


def _queue(
    queue: WaitingQueue, waits: tuple[WaitingFlow, Cause] | None, pace: FlowPace | None, now: datetime
) -> WaitingQueue:
    if waits is None:
        return queue
    flow, why = waits
    words = {Cause.REFUSED: flow.refused_for, Cause.NONE: "turn"}
    known = until(flow, why)
    estimated = None if known or pace is None else _served_at(queue, pace, now)
    return replace(
        queue,
        waits_for=words.get(why, why.value),
        waits_until=known or estimated,
        is_until_estimated=estimated is not None,
    )


def _served_at(queue: WaitingQueue, pace: FlowPace, now: datetime) -> datetime | None:
    """When the last of the leads that are due now will be called. None: unknown."""
    is_counted = queue.due < live.COUNT_MAX
    return ends_at(queue.due, pace.per_s, now, ()) if is_counted else None


def _since(recent: Recent, now: datetime, *, exact: bool) -> datetime:
    """For a tenant only the minute: the exact time would reveal how much other tenants dial."""
    since = recent.since or now - timedelta(seconds=WINDOW_S)
    return since if exact else since.replace(second=0, microsecond=0)
