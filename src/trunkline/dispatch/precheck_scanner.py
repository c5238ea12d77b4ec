"""Runs pre-checks before the leads' turn comes, so that no channel waits for a tenant's reply.

It scans the flows whose policy has pre-checks and checks the leads at their heads. The replies are awaited in the
background: a slow tenant delays neither the scan nor its own other leads. Each check claims its lead in Postgres, so
several processes may scan at once.
"""

import asyncio
from collections.abc import Sequence
from uuid import UUID

from trunkline.bus import schedule
from trunkline.bus.connection import Bus
from trunkline.control.controls import Controls
from trunkline.dispatch.policy_cache import Owner, Policies
from trunkline.dispatch.prechecks import Deferred, Prechecks
from trunkline.errors import BusUnavailable
from trunkline.loops.base import Loop
from trunkline.model import Flow
from trunkline.store import prechecks as store_prechecks
from trunkline.store import schedule as store_schedule
from trunkline.store.database import Connection, Database
from trunkline.store.schedule import BEFORE_ALL
from trunkline.telemetry import get_logger

log = get_logger(__name__)

FLOWS_PER_RUN = 100
# What a flow may start within a few seconds. A pass is valid for a minute, so heads that still wait are checked again.
HEADS_PER_FLOW = 20
AHEAD_S = 20.0
# Leads of one merchant whose checks run or wait at a time: a silent system with a hundred campaigns must not pile up
# requests.
CHECKS_MAX = 40


class PrecheckScanner(Loop):
    name = "prechecks"

    def __init__(
        self,
        database: Database,
        bus: Bus,
        controls: Controls,
        policies: Policies,
        prechecks: Prechecks,
        interval_s: float = 1.0,
    ):
        super().__init__(interval_s)
        self._database = database
        self._bus = bus
        self._controls = controls
        self._policies = policies
        self._prechecks = prechecks
        self._after = BEFORE_ALL
        # Leads with a running check, and their merchants.
        self._checking: dict[UUID, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run_once(self) -> int:
        """Begin checks. Returns of how many leads."""
        async with self._database.connection() as conn:
            if not await store_prechecks.are_wanted(conn):
                return 0
            flows = await store_schedule.flows(conn, after=self._after, limit=FLOWS_PER_RUN)
            self._after = flows[-1] if len(flows) == FLOWS_PER_RUN else BEFORE_ALL
            begun = [await self._begin(conn, flow) for flow in await self._with_prechecks(conn, flows)]
        return sum(begun)

    async def drain(self) -> None:
        """Wait for the running checks."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _with_prechecks(self, conn: Connection, flows: Sequence[Flow]) -> list[Flow]:
        """The flows whose leads need a pre-check. Stopped flows are left out."""
        policies = await self._policies.of(conn, map(_owner, flows))
        candidates = ((flow, policies[_owner(flow)]) for flow in flows if not self._is_stopped(flow))
        return [flow for flow, policy in candidates if policy is not None and policy.prechecks]

    def _is_stopped(self, flow: Flow) -> bool:
        return bool(
            self._controls.stopped(
                reseller_id=flow.reseller_id, merchant_id=flow.merchant_id, campaign_id=flow.campaign_id
            )
        )

    async def _begin(self, conn: Connection, flow: Flow) -> int:
        """Begin the checks of a flow's heads, in a task of their own. Returns how many."""
        running = sum(merchant_id == flow.merchant_id for merchant_id in self._checking.values())
        capacity = min(HEADS_PER_FLOW, CHECKS_MAX - running)
        if capacity <= 0:
            return 0
        entries = await store_schedule.heads(conn, flow, horizon_s=AHEAD_S, limit=capacity)
        leads = [entry.lead_id for entry in entries if entry.lead_id not in self._checking]
        if leads:
            self._checking |= dict.fromkeys(leads, flow.merchant_id)
            task = asyncio.create_task(self._check(leads), name="prechecks")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return len(leads)

    async def _check(self, leads: list[UUID]) -> None:
        try:
            verdicts = await self._prechecks.run_ahead(leads)
            moved = [verdict.moved for verdict in verdicts if isinstance(verdict, Deferred)]
            await schedule.add(self._bus, moved)
        except BusUnavailable as error:
            log.warning("prechecks.moves_not_scheduled", reason=str(error))
        except Exception as error:
            log.error("prechecks.failed", leads=len(leads), error=str(error), exc_info=error)
        finally:
            for lead_id in leads:
                del self._checking[lead_id]


def _owner(flow: Flow) -> Owner:
    return Owner(flow.reseller_id, flow.merchant_id, flow.campaign_id)
