"""Reports of agents on their calls, and the recordings of these calls.

A report is written once, together with its immediate consequence (an opt-out). An agent of ours reports to the API,
which appends to the call's mailbox in the same transaction. For an agent that the carrier runs, the carrier's webhook
brings the report, and the fold stores it. Either way the fold joins it with the facts, whichever comes first. Carriers
report the addresses of recordings in a webhook of their own, or with a call's end.
"""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, Literal
from uuid import UUID

from trunkline.jobs.platform.enrichment import CallSource, Wanted
from trunkline.moments import read_moment
from trunkline.store import call_reports, do_not_call, mailboxes
from trunkline.store.attempts import Attempt
from trunkline.store.call_reports import CallContext, CallReport
from trunkline.store.database import Connection, apart
from trunkline.store.mailboxes import Event, NewEvent, Parked
from trunkline.telemetry import get_logger, metrics
from trunkline.telephony.carrier import AgentReport

log = get_logger(__name__)

# superseded: the call has been assigned to another agent since, whose report counts.
ReportResult = Literal["new", "known", "contradicted", "superseded", "no_call"]

# The mailbox of a call, by its attempt.
KIND = "call"
_EVENT = "reported"
# The fields with a recording's address: of Twilio and Exotel, of Plivo, of Vapi.
_RECORDINGS = ("RecordingUrl", "RecordUrl", "recordingUrl")
# Twilio also reports recordings that cannot be fetched: not yet, never, or no longer.
_MISSING_RECORDINGS = frozenset({"in-progress", "processing", "absent", "failed", "deleted"})
RECORDING_REF_MAX = 2000


async def take(tx: Connection, attempt_id: UUID, report: CallReport, turn: int = 0) -> ReportResult:
    """Store a report, once, and wake the fold. The same report again is known; a different one is refused."""
    result = await store(tx, attempt_id, report, turn)
    if result == "new":
        await mailboxes.append(tx, [_event(attempt_id, turn)])
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
    batch: Mapping[str, Sequence[Event]],
    locked: Mapping[UUID, Attempt],
    parked: list[Parked],
) -> list[Wanted]:
    """Store the reports that came with webhooks of these calls, and return the enrichments of the new ones. Ordered by
    phone: the order in which people are put on the do-not-call list. A report that cannot be stored is parked with its
    event, alone: the call's facts do not wait for it, and an opt-out is listed all the same."""
    carried = [
        (each, event, report) for each in locked for event in batch[str(each)] for report in _reports(event)
    ]
    enrichments = []
    for attempt_id, event, report in sorted(carried, key=lambda item: (locked[item[0]].phone, item[0])):
        result = await apart(tx, store(tx, attempt_id, report))
        if isinstance(result, Exception):
            parked.append(
                Parked(event.key, event.seq, f"its report cannot be stored: {type(result).__name__}")
            )
            await _store_opt_out(tx, attempt_id, report)
            metrics.CALL_REPORTS.labels("unusable").inc()
            continue
        metrics.CALL_REPORTS.labels(result).inc()
        if result == "new":
            source = CallSource(data=dict(report.data))  # only the carrier's customer can open its references
            enrichments.append(Wanted(str(attempt_id), source, locked[attempt_id].tenant, attempt_id))
    return enrichments


async def _store_opt_out(tx: Connection, attempt_id: UUID, report: CallReport) -> None:
    if report.opt_out and (call := await call_reports.context(tx, attempt_id)):
        await _list_person(tx, call)


def as_payload(report: AgentReport) -> dict[str, Any]:
    """The payload of an event, as `store_carried` reads it."""
    return {
        "disposition": report.disposition,
        "opt_out": report.opt_out,
        "callback_at": report.callback_at.isoformat() if report.callback_at else None,
        "transcript_ref": report.transcript_ref,
        "recording_ref": report.recording_ref,
        "data": dict(report.data),
    }


def _reports(event: Event) -> Iterator[CallReport]:
    payload: Any = event.payload
    report = payload.get("report") if isinstance(payload, dict) else None
    if isinstance(report, dict):
        yield CallReport(
            _text(report.get("disposition"), 100),
            report.get("opt_out") is True,
            read_moment(report.get("callback_at")),
            _text(report.get("transcript_ref"), 2000),
            _text(report.get("recording_ref"), 2000),
            report["data"] if isinstance(report.get("data"), dict) else {},
        )


def _text(value: object, length_max: int) -> str | None:
    """None for a value that its column would refuse: the fold is total."""
    return value if isinstance(value, str) and 0 < len(value) <= length_max else None


async def _list_person(tx: Connection, call: CallContext) -> None:
    """The merchant does not call this person any more. Their waiting leads end at the next dial."""
    await do_not_call.add(
        tx, [call.person_phone], owner=call.tenant, reason="asked the agent", actor=f"call {call.attempt_id}"
    )


def _event(attempt_id: UUID, turn: int) -> NewEvent:
    """Only says that there is a report; the fold reads its content under its locks."""
    dedupe_key = f"{_EVENT}:{turn}" if turn else _EVENT
    return NewEvent(KIND, str(attempt_id), dedupe_key, _EVENT, {"kind": _EVENT})


async def store_recordings(
    tx: Connection, batch: Mapping[str, Sequence[Event]], locked: Mapping[UUID, Attempt]
) -> list[Wanted]:
    """Store the addresses of recordings that came with webhooks of these calls, and return the enrichments that fetch
    them. A recording is an item of its own, named by its address: reported twice, it is fetched once, whether or not
    the call's agent requested an enrichment. One that cannot be stored delays no call."""
    refs = list(
        dict.fromkeys(
            (each, ref) for each in locked for event in batch[str(each)] for ref in _recordings(event)
        )
    )
    if not refs:
        return []
    stored = await apart(tx, call_reports.add_recordings(tx, refs))
    if isinstance(stored, Exception):
        log.error("call.recordings_not_stored", calls=len(refs), error=type(stored).__name__)
        return []
    return [
        Wanted(
            f"{attempt_id}.{sha256(ref.encode()).hexdigest()[:16]}",
            CallSource(
                recording_url=ref, carrier=locked[attempt_id].carrier, account=locked[attempt_id].account
            ),
            locked[attempt_id].tenant,
            attempt_id,
        )
        for attempt_id, ref in refs
    ]


def _recordings(event: Event) -> Iterator[str]:
    payload: Any = event.payload
    raw = payload.get("raw") if isinstance(payload, dict) else None
    if not isinstance(raw, dict) or raw.get("RecordingStatus") in _MISSING_RECORDINGS:
        return
    for ref in map(raw.get, _RECORDINGS):
        if isinstance(ref, str) and 0 < len(ref) <= RECORDING_REF_MAX and ref.isprintable():
            yield ref
