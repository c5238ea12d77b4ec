"""Settling: what follows for leads and channels from what became known of their attempts.

Two ways lead here: the carrier's answer to our own request (`ResultWriter`), and the events it sends later
(`CallFold`). Both lock the leads first, write facts and consequences in one transaction, and tell Valkey afterwards.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from trunkline.bus import channels, epoch, schedule
from trunkline.bus.connection import Bus
from trunkline.errors import MemoryLost
from trunkline.leads.cancellation import Cancellation, after_cancellation
from trunkline.model import CallFacts, Decision, Entry, Finish, Retry
from trunkline.states import LeadStatus
from trunkline.store import attempts
from trunkline.store.attempts import Attempt
from trunkline.store.database import Connection
from trunkline.telemetry import metrics

NOTHING_LEARNT: Mapping[UUID, CallFacts] = {}


@dataclass(slots=True)
class Settlement:
    """What Valkey has to be told after the commit."""

    freed: list[UUID] = field(default_factory=list)
    scheduled: list[Entry] = field(default_factory=list)

    async def tell(self, bus: Bus) -> None:
        """Channels first: the freed channel is what a waiting lead needs. Memory that was lost meanwhile is rebuilt
        from Postgres, which knows all this already."""
        try:
            await epoch.ensure(bus)
            await channels.release(bus, self.freed)
            await schedule.add(bus, self.scheduled)
        except MemoryLost:
            return


async def settle(
    tx: Connection,
    locked: Mapping[UUID, Attempt],
    decisions: Iterable[tuple[UUID, Decision]],
    learnt: Mapping[UUID, CallFacts] = NOTHING_LEARNT,
) -> Settlement:
    """Write what was decided about the leads of these attempts. The decided attempts no longer hold a channel. `learnt`
    are the facts of this transaction; of the other attempts those hold that were read with them."""
    settlement, ends, retries = Settlement(), {}, {}
    for attempt_id, proposed in decisions:
        attempt = locked[attempt_id]
        settlement.freed.append(attempt_id)
        if attempt.lead_id is None or not _may_decide(attempt):
            continue
        facts = learnt.get(attempt_id, attempt.facts)
        decision = after_cancellation(
            proposed, _cancellation(attempt), was_answered=facts.answered_at is not None
        )
        match decision:
            case Finish():
                ends[attempt.lead_id] = decision
                metrics.CALLS_FINISHED.labels(attempt.carrier, decision.outcome.value).inc()
            case Retry():
                retries[attempt.lead_id] = decision
    await attempts.finish_leads(tx, ends)
    settlement.scheduled = await attempts.retry_leads(tx, retries)
    return settlement


async def revise(
    tx: Connection, locked: Mapping[UUID, Attempt], decisions: Iterable[tuple[UUID, Decision]]
) -> list[Entry]:
    """Leads that ended as the carrier told it, and whose agents spoke later. Returns those that are due again."""
    ends, retries = {}, {}
    for attempt_id, decision in decisions:
        lead_id = locked[attempt_id].lead_id
        assert lead_id is not None, "only calls to leads are decided on"
        match decision:
            case Finish():
                ends[lead_id] = decision
            case Retry():
                retries[lead_id] = decision
    await attempts.revise_leads(tx, ends)
    return await attempts.retry_leads(tx, retries, status=LeadStatus.FINISHED)


def _cancellation(attempt: Attempt) -> Cancellation | None:
    return Cancellation(attempt.cancel_reason, attempt.hang_up_wanted) if attempt.is_cancelled else None


def _may_decide(attempt: Attempt) -> bool:
    """Only the newest attempt decides what becomes of its lead: a late fact of an older one changes nothing."""
    return attempt.is_newest and attempt.lead_status is LeadStatus.PROCESSING
