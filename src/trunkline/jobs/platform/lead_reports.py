"""`report_lead`: a lead has ended. Whoever wants to hear of it gets a `lead.finished`.

Enqueued by Postgres itself with the end of the lead (`0018_lead_ends.sql`), whoever ends it. It only finds out whom to
tell; each of them is told by a job of its own, so that a receiver that is down keeps nobody else waiting.
"""

from typing import Any
from uuid import UUID

import msgspec

from trunkline.jobs.outbox import Outbox
from trunkline.jobs.outcomes import Cancel, Done, Outcome, Policy
from trunkline.jobs.platform.sealing import Sealer
from trunkline.jobs.platform.webhooks import deliver, ensure_endpoint
from trunkline.jobs.registry import JobType
from trunkline.jobs.run import Run
from trunkline.leads.legacy_outcomes import legacy
from trunkline.store import leads, webhook_endpoints
from trunkline.store.database import Connection, Database
from trunkline.store.leads import Lead, LeadAttempt
from trunkline.store.tenants import PLATFORM

LEAD_FINISHED = "lead.finished"


class LeadEnd(msgspec.Struct):
    lead_id: UUID


REPORT_LEAD: JobType[LeadEnd] = JobType(
    "report_lead", LeadEnd, Policy(backoff_s=(0.0, 5.0, 30.0, 300.0), max_attempts=10, timeout_s=60.0)
)


class LeadReport:
    """The handler. Its deliveries and its own end are one transaction."""

    def __init__(self, database: Database, outbox: Outbox, sealer: Sealer):
        self._database = database
        self._outbox = outbox
        self._sealer = sealer

    async def run(self, end: LeadEnd, run: Run) -> Outcome:
        async with self._database.transaction() as tx:
            lead = await leads.get(tx, PLATFORM, end.lead_id)
            if lead is None or lead.finished_at is None:
                return Cancel("The lead is gone, or waits again")
            data = data_of(lead, await leads.attempts(tx, lead.id))
            listeners = await self._listeners(tx, lead)
            jobs = await deliver(
                tx,
                self._outbox,
                listeners,
                lead.tenant,
                LEAD_FINISHED,
                data,
                at=lead.finished_at,
                about=lead.id,
            )
            result = {"deliveries": len(jobs)}
            await run.finish(tx, result)
        self._outbox.poke(*jobs)
        return Done(result)

    async def _listeners(self, tx: Connection, lead: Lead) -> list[UUID]:
        """Endpoints of the tenant, and the URL that came with the lead; one that is both is told once."""
        found = await webhook_endpoints.subscribed(tx, lead.tenant, LEAD_FINISHED)
        if lead.reporting_webhook_url is not None:
            own = await ensure_endpoint(tx, self._sealer, lead.tenant, lead.reporting_webhook_url)
            found = [*(endpoint_id for endpoint_id in found if endpoint_id != own.id), own.id]
        return found


def data_of(lead: Lead, attempts: list[LeadAttempt]) -> dict[str, Any]:
    """As the API shows a lead and its attempts, without what is only for those who run the platform."""
    legacy_outcome, legacy_reason = legacy(lead.outcome, lead.outcome_reason)
    return {
        "id": lead.id,
        "request_id": lead.request_id,
        "merchant_id": lead.merchant_id,
        "campaign_id": lead.campaign_id,
        "phone": lead.phone,
        "payload": lead.payload,
        "outcome": lead.outcome,
        "outcome_reason": lead.outcome_reason,
        # In versions 0.1.x only: see `leads.legacy_outcomes`.
        "legacy_outcome": legacy_outcome,
        "legacy_outcome_reason": legacy_reason,
        "scheduled_at": lead.scheduled_at,
        "finished_at": lead.finished_at,
        "attempt_count": lead.attempt_count,
        "attempts": [_attempt(attempt) for attempt in attempts],
    }


def _attempt(attempt: LeadAttempt) -> dict[str, Any]:
    return {
        "id": attempt.id,
        "attempt_no": attempt.attempt_no,
        "state": attempt.state,
        "carrier": attempt.carrier,
        "carrier_call_id": attempt.carrier_call_id,
        "from_phone": attempt.from_phone,
        "answered_at": attempt.answered_at,
        "ended_at": attempt.ended_at,
        "end_reason": attempt.end_reason,
        "duration_s": attempt.duration_s,
        "agent": attempt.agent,
        "report": attempt.report,
    }
