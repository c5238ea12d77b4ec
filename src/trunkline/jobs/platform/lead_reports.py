"""`report_lead`: a lead has ended, or was reopened. Subscribed endpoints get a `lead.finished` or a `lead.reopened`.

A trigger in Postgres enqueues it with the end of the lead or with the reopening (`lead_ended`, `lead_reopened`),
whichever component causes it. The job only selects the endpoints; each gets a delivery job of its own, so that an
endpoint that is down delays no other.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from trunkline.jobs.outbox import Outbox
from trunkline.jobs.outcomes import Cancel, Done, Outcome, Policy
from trunkline.jobs.platform.webhooks import deliver, ensure_endpoint
from trunkline.jobs.registry import JobType
from trunkline.jobs.run import Run
from trunkline.leads.retries import legacy
from trunkline.schema.leads import Attempt
from trunkline.sealing import Sealer
from trunkline.store import lead_edits, leads, webhook_endpoints
from trunkline.store.database import Connection, Database
from trunkline.store.lead_edits import Reopening
from trunkline.store.leads import StoredLead
from trunkline.store.tenants import PLATFORM

LEAD_FINISHED = "lead.finished"
LEAD_REOPENED = "lead.reopened"
# The fields of a lead in both, and those of an attempt.
LEAD = ("id", "request_id", "merchant_id", "campaign_id", "phone", "payload")
ATTEMPT = (
    "id", "attempt_no", "state", "carrier", "carrier_call_id", "from_phone", "answered_at", "ended_at", "end_reason",
    "duration_s", "agent", "report",
)  # fmt: skip


class LeadEnd(msgspec.Struct):
    """The end of a lead, or a reopening: `reopen_no` distinguishes one end of the lead from the next."""

    lead_id: UUID
    reopen_no: int = 0
    is_reopened: bool = False


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
            message = await _message(tx, lead, end) if lead is not None else None
            if lead is None or message is None:
                return Cancel("The lead is gone, or waits again")
            event_type, at, data = message
            jobs = await deliver(
                tx,
                self._outbox,
                await self._endpoints(tx, lead, event_type),
                lead.tenant,
                event_type,
                data,
                at=at,
                about=_about(end),
            )
            result = {"deliveries": len(jobs)}
            await run.finish(tx, result)
        self._outbox.wake(*jobs)
        return Done(result)

    async def _endpoints(self, tx: Connection, lead: StoredLead, event_type: str) -> list[UUID]:
        """Endpoints of the tenant, and the URL that came with the lead, without duplicates."""
        endpoints = await webhook_endpoints.subscribed(tx, lead.tenant, event_type)
        if lead.reporting_webhook_url is not None:
            own = await ensure_endpoint(tx, self._sealer, lead.tenant, lead.reporting_webhook_url)
            endpoints = [*(endpoint_id for endpoint_id in endpoints if endpoint_id != own.id), own.id]
        return endpoints


async def _message(
    tx: Connection, lead: StoredLead, end: LeadEnd
) -> tuple[str, datetime, dict[str, Any]] | None:
    """Event type, time and data. If the lead was reopened meanwhile, they are those of its previous end. None: the
    agent's report made the lead wait again, so it has not ended."""
    if end.is_reopened:
        order = await lead_edits.reopening(tx, lead.id, end.reopen_no)
        return None if order is None else (LEAD_REOPENED, order.at, reopened_data(lead, order))
    attempts = await leads.attempts(tx, lead.id)
    if lead.reopen_count > end.reopen_no:
        order = await lead_edits.reopening(tx, lead.id, end.reopen_no + 1)
        if order is None:
            return None
        lead = replace(
            lead,
            outcome=order.outcome,
            outcome_reason=order.outcome_reason,
            finished_at=order.finished_at,
            reopen_count=end.reopen_no,
        )
    if lead.finished_at is None:
        return None
    return LEAD_FINISHED, lead.finished_at, data_of(lead, attempts)


def _about(end: LeadEnd) -> str:
    """The message's id: the same for a repeat, another for the end after the next reopening."""
    order = f"_{end.reopen_no}" if end.reopen_no else ""
    return f"{end.lead_id.hex}{order}{'_reopened' if end.is_reopened else ''}"


def _fields(value: StoredLead | Attempt, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def reopened_data(lead: StoredLead, order: Reopening) -> dict[str, Any]:
    """`previous_outcome` is that of its last `lead.finished`."""
    return {
        **_fields(lead, LEAD),
        "reopen_count": order.no,
        "reason": order.reason,
        "reopened_at": order.at,
        "previous_outcome": order.outcome,
        "previous_outcome_reason": order.outcome_reason,
        "previous_finished_at": order.finished_at,
        "scheduled_at": lead.scheduled_at,
        "attempt_count": lead.attempt_count,
    }


def data_of(lead: StoredLead, attempts: list[Attempt]) -> dict[str, Any]:
    """A lead and its attempts as the API shows them, without the fields for operators of the platform."""
    legacy_outcome, legacy_reason = legacy(lead.outcome, lead.outcome_reason)
    return {
        **_fields(lead, (*LEAD, "outcome", "outcome_reason")),
        # In versions 0.1.x only: see `leads.retries.LEGACY`.
        "legacy_outcome": legacy_outcome,
        "legacy_outcome_reason": legacy_reason,
        **_fields(lead, ("scheduled_at", "finished_at", "attempt_count", "reopen_count")),
        "attempts": [_fields(attempt, ATTEMPT) for attempt in attempts],
    }
