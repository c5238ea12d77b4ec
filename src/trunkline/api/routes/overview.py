"""The present state in one response: for the console, for `trunkline top`, for a wall display."""

from datetime import datetime, timedelta
from uuid import UUID

from fastapi import APIRouter
from pydantic import AliasChoices, Field

from trunkline.api.auth import API_ROOT, ReadKey
from trunkline.api.deps import Api, Deps
from trunkline.api.models import READ_ERRORS, Out
from trunkline.campaigns.progress import ends_at, shares
from trunkline.control import inputs
from trunkline.control.waits import Cause, everybody, until
from trunkline.schema.campaigns import Shares
from trunkline.store import abandonment, live
from trunkline.store.database import Connection
from trunkline.store.live import FlowPace, Process, Queue, Recent, Slice
from trunkline.store.tenants import Tenant
from trunkline.store.waiting import WaitingFlow

router = APIRouter(prefix=f"{API_ROOT}/overview", tags=["operation"])

WINDOW_S = 300
SLICE_S = 5
# A process reports its presence every 5 s.
SILENT_S = 20.0


class ChannelUseOut(Out):
    capacity: int
    held: int


class SliceOut(Out):
    at: datetime
    dials: int
    p50_s: float | None = Field(description="The median lateness; null if all were inbound calls.")
    p99_s: float | None


class QueueOut(Out):
    merchant_id: str
    campaign_id: UUID | None
    pool: str = Field(validation_alias=AliasChoices("pool_id", "pool"))
    first_due_at: datetime
    due: int = Field(description=f"Due leads, counted up to {live.COUNT_MAX}.")
    waiting: int = Field(description=f"All waiting leads, counted up to {live.COUNT_MAX}.")
    waits_for: str | None = Field(
        default=None,
        description="Why due leads wait: `stopped`, `event_dispatch`, `no_agent_brake`, `no_number`, "
        "`numbers_stopped`, `cooldown`, `channels`, `no_agents`, `agents_busy`, the reason of an "
        "intent's refusal, or `turn`: they only wait for their turn. null: no lead is due.",
    )
    waits_until: datetime | None = Field(
        default=None,
        description="When the wait ends, if that is known. `cooldown`: when the next probe is sent. `channels`: "
        "when the last of the leads that are due now is called, if calls end at the pace of the last "
        "ten minutes; null if more leads are due than are counted, or no call has ended.",
    )
    is_until_estimated: bool = Field(
        default=False, description="`waits_until` is an estimate, from the pace of the last ten minutes."
    )


class ProcessOut(Out):
    id: str
    roles: list[str]
    started_at: datetime
    silent_s: float = Field(description="Since its last report.")
    is_alive: bool
    is_leader: bool


class OverviewOut(Out):
    at: datetime
    calls: dict[str, int] = Field(description="Calls that hold a channel now, by state.")
    channels: ChannelUseOut = Field(description="Of your own numbers.")
    window_s: int
    slice_s: int
    since: datetime = Field(
        description="How far back the slices reach: under heavy load not the whole window."
    )
    slices: list[SliceOut] = Field(
        description="Dials by time slice, oldest first. Slices without a dial are left out."
    )
    endings: dict[str, int] = Field(description="How the calls of these slices have ended so far.")
    queues: list[QueueOut] = Field(description=f"Up to {live.QUEUES_MAX}, the longest waiting first.")
    abandonment: Shares = Field(
        description="Abandoned calls, of all your calls: a person answered, and no agent took the call."
    )
    leads_about: int | None = Field(description="An estimate; null while there is none, and for tenants.")
    processes: list[ProcessOut] = Field(description="For keys of the platform; empty for others.")
    is_led: bool | None = Field(description="Whether there is a leader; null for tenants.")


@router.get("", response_model=OverviewOut, responses=READ_ERRORS, summary="Get the live overview")
async def get_overview(who: ReadKey, api: Deps) -> OverviewOut:
    """Calls, channels, pace, lateness, queues and processes. It costs the same with a million leads as with ten."""
    tenant = who.tenant
    async with api.store.reading() as connection:
        recent = await live.recent(connection, tenant, window_s=WINDOW_S, slice_s=SLICE_S)
        processes = await live.processes(connection) if tenant.is_platform else []
        return OverviewOut(
            at=api.deps.clock.now(),
            calls=await live.calls(connection, tenant),
            channels=ChannelUseOut.model_validate(await live.channels(connection, tenant)),
            window_s=WINDOW_S,
            slice_s=SLICE_S,
            since=_since(recent, api.deps.clock.now(), exact=tenant.is_platform),
            slices=[_slice(each) for each in recent.slices],
            endings=recent.endings,
            queues=await _queues(connection, api, tenant),
            abandonment=shares(await abandonment.measured_by_tenant(connection, tenant)),
            leads_about=await live.lead_estimate(connection) if tenant.is_platform else None,
            processes=[_process(each) for each in processes],
            is_led=any(each.is_leader for each in processes) if tenant.is_platform else None,
        )


async def _queues(connection: Connection, api: Api, tenant: Tenant) -> list[QueueOut]:
    queues = await live.queues(connection, tenant)
    view = api.deps.dispatch
    named = [(queue.pool_id, queue.merchant_id, queue.campaign_id) for queue in queues]
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
    queue: Queue, waits: tuple[WaitingFlow, Cause] | None, pace: FlowPace | None, now: datetime
) -> QueueOut:
    shown = QueueOut.model_validate(queue)
    if waits is None:
        return shown
    flow, why = waits
    words = {Cause.REFUSED: flow.refused_for, Cause.NONE: "turn"}
    known = until(flow, why)
    estimated = None if known or pace is None else _served_at(queue, pace, now)
    return shown.model_copy(
        update={
            "waits_for": words.get(why, why.value),
            "waits_until": known or estimated,
            "is_until_estimated": estimated is not None,
        }
    )


def _served_at(queue: Queue, pace: FlowPace, now: datetime) -> datetime | None:
    """When the last of the leads that are due now will be called. None: unknown."""
    is_counted = queue.due < live.COUNT_MAX
    return ends_at(queue.due, pace.per_s, now, ()) if is_counted else None


def _since(recent: Recent, now: datetime, *, exact: bool) -> datetime:
    """For a tenant only the minute: the exact time would reveal how much other tenants dial."""
    since = recent.since or now - timedelta(seconds=WINDOW_S)
    return since if exact else since.replace(second=0, microsecond=0)


def _slice(each: Slice) -> SliceOut:
    return SliceOut.model_validate(each)


def _process(each: Process) -> ProcessOut:
    return ProcessOut(
        id=each.id,
        roles=each.roles,
        started_at=each.started_at,
        silent_s=round(each.silent_s, 1),
        is_alive=each.silent_s < SILENT_S,
        is_leader=each.is_leader,
    )
