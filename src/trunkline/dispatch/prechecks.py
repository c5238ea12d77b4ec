"""Queries a tenant's own system whether a lead may be called, before a channel is taken for it.

`run_ahead` is for the leads at the heads of flows (`PrecheckScanner` finds them): no channel waits for them. A pass is
valid for 60 s. The intent refuses a lead without one as `precheck needed`; the dialer keeps its channel
(`grants.py`), runs `ask` in a task of its own, and tries again. Every lead has a check of its own, so a slow reply
delays no other lead, and every merchant has a limit of its own (`PrecheckConcurrency`): a lead is claimed when its
check can run, and a channel does not wait behind many.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from uuid import UUID
from weakref import WeakValueDictionary

from trunkline.bus import schedule
from trunkline.bus.connection import Bus
from trunkline.control.controls import Controls
from trunkline.dispatch.policy_cache import Policies
from trunkline.dispatch.precheck_http import NoReply, hosts_of, run_checks
from trunkline.errors import BusUnavailable
from trunkline.http.outgoing import Outgoing
from trunkline.leads.calling_policy import Effective
from trunkline.leads.precheck_conditions import HttpCheck
from trunkline.loops.base import Loop
from trunkline.model import Finish, Flow, Outcome, Refusal, RefusalReason
from trunkline.store import dispatch, prechecks
from trunkline.store import schedule as store_schedule
from trunkline.store.database import Connection, Database
from trunkline.store.prechecks import PrecheckLead
from trunkline.store.schedule import BEFORE_ALL
from trunkline.telemetry import get_logger, metrics
from trunkline.value import replace

log = get_logger(__name__)

PASS_VALID_S = 60.0
# Renewed ahead of time, so that a pass does not expire between two rounds.
RENEW_BELOW_S = 20.0
# A call leaves within this time of its intent, and its pass has to be valid until then.
VALID_AT_LEAST_S = 1.0
# Fewer than the connections of a process to one host: a request that waited for a connection would use up its own
# time-out, and a slow host would seem to be silent.
CONCURRENCY_PER_HOST = 8
# Fewer than the limit of a host: several merchants may use one host, each on a path of its own.
CONCURRENCY_PER_MERCHANT = 6
# With this many checks of a merchant running or waiting, no channel is kept for one more.
PENDING_MAX = 2 * CONCURRENCY_PER_MERCHANT
FLOWS_PER_RUN = 100
# What a flow may start within a few seconds. A pass is valid for a minute, so heads that still wait are checked again.
HEADS_PER_FLOW = 20
AHEAD_S = 20.0
# Leads of one merchant whose checks run or wait at a time: a silent system with a hundred campaigns must not pile up
# requests.
CHECKS_MAX = 40
NO_ROOM = "no_room"


@dataclass(frozen=True, slots=True)
class PrecheckPassed:
    lead_id: UUID


@dataclass(frozen=True, slots=True)
class Skipped:
    """No check ran: none is needed, the lead has changed, another process checks it, or too many checks wait."""

    lead_id: UUID
    reason: str


# A refusal ends the lead, or has deferred it.
PrecheckVerdict = PrecheckPassed | Refusal | Skipped


class Prechecks:
    def __init__(self, database: Database, outgoing: Outgoing, policies: Policies):
        self._database = database
        self._outgoing = outgoing
        self._concurrency = PrecheckConcurrency()
        self._policies = policies

    async def run_ahead(self, lead_ids: Sequence[UUID]) -> list[PrecheckVerdict]:
        """For leads that will be granted soon. Those that have a fresh pass, or need none, cost one read."""
        return await self._check_leads(lead_ids, fresh_for_s=RENEW_BELOW_S)

    async def ask(self, lead_id: UUID) -> PrecheckVerdict:
        """For one lead whose channel is held meanwhile."""
        (verdict,) = await self._check_leads(
            [lead_id], fresh_for_s=VALID_AT_LEAST_S, waiting_max=PENDING_MAX
        ) or [Skipped(lead_id, "gone")]
        return verdict

    async def _check_leads(
        self, lead_ids: Sequence[UUID], *, fresh_for_s: float, waiting_max: float = float("inf")
    ) -> list[PrecheckVerdict]:
        async with self._database.connection() as conn:
            leads = await prechecks.waiting(conn, lead_ids, fresh_for_s=fresh_for_s)
            policies = await self._policies.of(conn, leads)
        return await asyncio.gather(
            *(
                self._check_lead(lead, policy, waiting_max, fresh_for_s)
                for lead, policy in zip(leads, policies, strict=True)
            )
        )

    async def _check_lead(
        self, lead: PrecheckLead, policy: Effective, waiting_max: float, fresh_for_s: float
    ) -> PrecheckVerdict:
        if not policy.prechecks or lead.passed_checks == policy.checks_hash:
            return Skipped(lead.id, "not_needed")
        if lead.id in self._concurrency.leads:
            return Skipped(lead.id, "being_asked")
        if self._concurrency.pending[lead.merchant_id] >= waiting_max:
            return Skipped(lead.id, NO_ROOM)
        async with self._concurrency.turn(lead.id, lead.merchant_id, hosts_of(policy.prechecks)):
            async with self._database.connection() as conn:
                # Longer than all tries of all checks can take.
                tries_s = [(check.timeout_s + 2.0) * (check.retries + 1) for check in policy.prechecks]
                lease = {lead.id: (policy.checks_hash, sum(tries_s) + 5.0)}
                claimed = await prechecks.claim(conn, lease, fresh_for_s=fresh_for_s)
            if lead.id not in claimed:
                return Skipped(lead.id, "being_asked")
            return await self._judge(lead, policy, claimed[lead.id])

    async def _judge(self, lead: PrecheckLead, policy: Effective, deferrals: int) -> PrecheckVerdict:
        refused = await run_checks(self._outgoing, policy.prechecks, lead)
        if refused is None:
            metrics.PRECHECKS.labels("passed").inc()
            async with self._database.connection() as conn:
                await prechecks.passed(
                    conn, lead.id, policy.checks_hash, valid_s=PASS_VALID_S, answer="passed"
                )
            return PrecheckPassed(lead.id)
        check, reply = refused
        answer = reply.reason if isinstance(reply, NoReply) else f"status {reply.status}"
        log.info("precheck.not_passed", lead_id=str(lead.id), answer=answer)
        return await self._refuse(lead, policy, check, deferrals, answer)

    async def _refuse(
        self, lead: PrecheckLead, policy: Effective, check: HttpCheck, deferrals: int, answer: str
    ) -> PrecheckVerdict:
        """Postgres first, as with every refusal: the lead ends or gets its new due time in one transaction."""
        async with self._database.transaction() as tx:
            now = await prechecks.lock_lead(tx, lead.id, lead.version)
            if now is None:
                return Skipped(lead.id, "changed")
            opening = None
            if check.otherwise == "defer" and deferrals < check.defer_max:
                opening = policy.opening(lead.phone, lead.timezone, now + check.defer_for)
            if opening is None:
                finish = Finish(Outcome.PRECHECK_FAILED, answer.upper().replace(" ", "_"))
                refusal = Refusal(RefusalReason.PRECHECK, subject=answer, finish=finish)
            else:
                refusal = Refusal(
                    RefusalReason.PRECHECK,
                    until=opening.opens_at,
                    subject=answer,
                    due_at=opening.opens_at,
                    closes_at=opening.closes_at,
                )
            moved = await dispatch.write_refusals(tx, [(lead, refusal)])
            await prechecks.failed(tx, lead.id, deferred=opening is not None, answer=answer)
            metrics.PRECHECKS.labels("deferred" if opening else "failed").inc()
            return replace(refusal, moved=moved.get(lead.id))


class PrecheckConcurrency:
    """Limits of concurrent pre-checks: only leads of the same merchant wait for a tenant's slow system. A lead that
    waits for its turn is not claimed yet, so no lease expires in a queue."""

    def __init__(self) -> None:
        self._merchants: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._hosts: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        # Leads whose check is running or waiting for its turn, and how many there are of a merchant.
        self.leads: set[UUID] = set()
        self.pending: Counter[str] = Counter()

    @asynccontextmanager
    async def turn(self, lead_id: UUID, merchant_id: str, hosts: Iterable[str]) -> AsyncIterator[None]:
        """Wait for a turn. Merchants first, then hosts by name: one order, so there is no deadlock."""
        self.leads.add(lead_id)
        self.pending[merchant_id] += 1
        try:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(
                    _limit(self._merchants, merchant_id, CONCURRENCY_PER_MERCHANT)
                )
                for host in sorted(set(hosts)):
                    await stack.enter_async_context(_limit(self._hosts, host, CONCURRENCY_PER_HOST))
                yield
        finally:
            self.leads.discard(lead_id)
            self.pending[merchant_id] -= 1
            if not self.pending[merchant_id]:
                del self.pending[merchant_id]


def _limit(limits: "WeakValueDictionary[str, asyncio.Semaphore]", name: str, size: int) -> asyncio.Semaphore:
    return limits.setdefault(name, asyncio.Semaphore(size))


class PrecheckScanner(Loop):
    """Runs pre-checks before the leads' turn comes, so that no channel waits for a tenant's reply.

    It scans the flows whose policy has pre-checks and checks the leads at their heads. The replies are awaited in the
    background: a slow tenant delays neither the scan nor its own other leads. Each check claims its lead in Postgres,
    so several processes may scan at once.
    """

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
            if not await prechecks.are_wanted(conn):
                return 0
            flows = await store_schedule.flows(conn, after=self._after, limit=FLOWS_PER_RUN)
            self._after = flows[-1] if len(flows) == FLOWS_PER_RUN else BEFORE_ALL
            begun = 0
            for flow, policy in zip(flows, await self._policies.of(conn, flows), strict=True):
                stop = self._controls.stopped(
                    reseller_id=flow.reseller_id, merchant_id=flow.merchant_id, campaign_id=flow.campaign_id
                )
                if policy.prechecks and not stop:
                    begun += await self._begin(conn, flow)
        return begun

    async def drain(self) -> None:
        """Wait for the running checks."""
        if self._tasks:
            await asyncio.wait(self._tasks)

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
            moved = [verdict.moved for verdict in verdicts if isinstance(verdict, Refusal)]
            await schedule.add(self._bus, filter(None, moved))
        except BusUnavailable as error:
            log.warning("prechecks.moves_not_scheduled", reason=str(error))
        except Exception as error:
            log.error("prechecks.failed", leads=len(leads), error=str(error), exc_info=error)
        finally:
            for lead_id in leads:
                del self._checking[lead_id]
