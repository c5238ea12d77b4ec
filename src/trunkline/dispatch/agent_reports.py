"""Reports of agents on their calls, and the recordings of these calls.

A report is written once, together with its immediate consequence (an opt-out). An agent of ours reports to the API,
which appends to the call's mailbox in the same transaction. For an agent that the carrier runs, the carrier's webhook
brings the report, and the fold stores it. Either way the fold joins it with the facts, whichever comes first. Carriers
report the addresses of recordings in a webhook of their own, or with a call's end.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Literal
from uuid import UUID

from msgspec.structs import asdict

from trunkline.jobs.platform.enrichment import CallSource, Wanted
from trunkline.leads.fold import Fact
from trunkline.model import CallReport
from trunkline.store import call_reports, do_not_call, mailboxes
from trunkline.store.attempts import Attempt
from trunkline.store.call_reports import CallContext
from trunkline.store.database import Connection, apart
from trunkline.store.mailboxes import NewEvent, Parked
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

# superseded: the call has been assigned to another agent since, whose report counts.
ReportResult = Literal["new", "known", "contradicted", "superseded", "no_call"]

# The mailbox of a call, by its attempt.
KIND = "call"
_EVENT = "reported"


async def take(tx: Connection, attempt_id: UUID, report: CallReport, turn: int = 0) -> ReportResult:
    """Store a report, once, and wake the fold. The same report again is known; a different one is refused."""
    result = await store(tx, attempt_id, report, turn)
    if result == "new":
        # Only says that there is a report; the fold reads its content under its locks.
        dedupe_key = f"{_EVENT}:{turn}" if turn else _EVENT
        event = NewEvent(KIND, str(attempt_id), dedupe_key, _EVENT, {"kind": _EVENT})
        await mailboxes.append(tx, [event])
    return result


async def store(tx: Connection, attempt_id: UUID, report: CallReport, turn: int = 0) -> ReportResult:
    call = await call_reports.context(tx, attempt_id)
    if call is None:
        return "no_call"
    if turn < call.turn:
        # An opt-out counts whichever agent it was said to.
        if report.opt_out:
            await _list_person(tx, call)
        return "superseded"
    if not await call_reports.insert(tx, attempt_id, report, turn):
        stored = await call_reports.get(tx, attempt_id)
        return "known" if stored == report else "contradicted"
    if report.opt_out:
        await _list_person(tx, call)
    log.info("call.reported", attempt_id=str(attempt_id), opt_out=report.opt_out)
    return "new"


async def store_carried(
    tx: Connection,
    locked: Mapping[UUID, Attempt],
    carried: Sequence[tuple[UUID, Fact, CallReport]],
    parked: list[Parked],
) -> list[Wanted]:
    """Store the reports that came with webhooks of these calls, and return the enrichments of the new ones. Ordered by
    phone: the order in which people are put on the do-not-call list. A report that cannot be stored is parked with its
    event, alone: the call's facts do not wait for it, and an opt-out is listed all the same."""
    enrichments = []
    for attempt_id, fact, report in sorted(carried, key=lambda item: (locked[item[0]].phone, item[0])):
        result = await apart(tx, store(tx, attempt_id, report))
        if isinstance(result, Exception):
            error = f"its report cannot be stored: {type(result).__name__}"
            parked.append(Parked(str(attempt_id), fact.seq, error))
            if report.opt_out and (call := await call_reports.context(tx, attempt_id)):
                await _list_person(tx, call)
            metrics.CALL_REPORTS.labels("unusable").inc()
            continue
        metrics.CALL_REPORTS.labels(result).inc()
        if result == "new":
            source = CallSource(data=dict(report.data))  # only the carrier's customer can open its references
            enrichments.append(Wanted(str(attempt_id), source, locked[attempt_id].tenant, attempt_id))
    return enrichments


def as_payload(report: CallReport) -> dict[str, Any]:
    """The payload of an event, as the fold reads it."""
    callback_at = report.callback_at.isoformat() if report.callback_at else None
    return asdict(report) | {"callback_at": callback_at}


async def _list_person(tx: Connection, call: CallContext) -> None:
    """The merchant does not call this person any more. Their waiting leads end at the next dial."""
    await do_not_call.add(
        tx, [call.person_phone], owner=call.tenant, reason="asked the agent", actor=f"call {call.attempt_id}"
    )


async def store_recordings(
    tx: Connection, locked: Mapping[UUID, Attempt], recordings: Sequence[tuple[UUID, str]]
) -> list[Wanted]:
    """Store the addresses of recordings that came with webhooks of these calls, and return the enrichments that fetch
    them. A recording is an item of its own, named by its address: reported twice, it is fetched once, whether or not
    the call's agent requested an enrichment. One that cannot be stored delays no call."""
    refs = list(dict.fromkeys(recordings))
    stored = await apart(tx, call_reports.add_recordings(tx, refs))
    if isinstance(stored, Exception):
        log.error("call.recordings_not_stored", calls=len(refs), error=type(stored).__name__)
        return []
    wanted = []
    for attempt_id, ref in refs:
        attempt = locked[attempt_id]
        source = CallSource(recording_url=ref, carrier=attempt.carrier, account=attempt.account)
        item_id = f"{attempt_id}.{sha256(ref.encode()).hexdigest()[:16]}"
        wanted.append(Wanted(item_id, source, attempt.tenant, attempt_id))
    return wanted
