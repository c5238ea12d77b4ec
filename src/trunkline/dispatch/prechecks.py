"""Queries a tenant's own system whether a lead may be called, before a channel is taken for it.

`run_ahead` is for the leads at the heads of flows (`precheck_scanner.py` scans them): no channel waits for them. A
pass is valid for 60 s. The intent refuses a lead without one as `precheck needed`; the dialer keeps its channel
(`grants.py`), runs `ask` in a task of its own, and tries again. Every lead has a check of its own, so a slow reply
delays no other lead, and every merchant has a limit of its own (`precheck_concurrency.py`): a lead is claimed when its
check can run, and a channel does not wait behind many.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from trunkline.dispatch.policy_cache import Policies
from trunkline.dispatch.precheck_concurrency import CONCURRENCY_PER_MERCHANT, PrecheckConcurrency
from trunkline.dispatch.precheck_http import NoReply, hosts_of, run_checks
from trunkline.http.outgoing import Outgoing
from trunkline.leads.calling_policy import Effective
from trunkline.leads.precheck_conditions import HttpCheck
from trunkline.model import Finish, Outcome, Refusal, RefusalReason
from trunkline.store import dispatch, prechecks
from trunkline.store.database import Database
from trunkline.store.prechecks import PrecheckLead
from trunkline.telemetry import get_logger, metrics
from trunkline.value import replace

log = get_logger(__name__)

PASS_VALID_S = 60.0
# Renewed ahead of time, so that a pass does not expire between two rounds.
RENEW_BELOW_S = 20.0
# A call leaves within this time of its intent, and its pass has to be valid until then.
VALID_AT_LEAST_S = 1.0
# With this many checks of a merchant running or waiting, no channel is kept for one more.
PENDING_MAX = 2 * CONCURRENCY_PER_MERCHANT
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
        return list(await self._check_leads(lead_ids, fresh_for_s=RENEW_BELOW_S))

    async def ask(self, lead_id: UUID) -> PrecheckVerdict:
        """For one lead whose channel is held meanwhile."""
        (verdict,) = await self._check_leads(
            [lead_id], fresh_for_s=VALID_AT_LEAST_S, waiting_max=PENDING_MAX
        ) or [Skipped(lead_id, "gone")]
        return verdict

    async def _check_leads(
        self, lead_ids: Sequence[UUID], *, fresh_for_s: float, waiting_max: float = float("inf")
    ) -> Sequence[PrecheckVerdict]:
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
        if self._concurrency.is_pending(lead.id):
            return Skipped(lead.id, "being_asked")
        if self._concurrency.pending(lead.merchant_id) >= waiting_max:
            return Skipped(lead.id, NO_ROOM)
        async with self._concurrency.turn(lead.id, lead.merchant_id, hosts_of(policy.prechecks)):
            async with self._database.connection() as conn:
                lease = {lead.id: (policy.checks_hash, _lease_s(policy))}
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


def _lease_s(policy: Effective) -> float:
    """Longer than all tries of all checks can take."""
    return sum((check.timeout_s + 2.0) * (check.retries + 1) for check in policy.prechecks) + 5.0
