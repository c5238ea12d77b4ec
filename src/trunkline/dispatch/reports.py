"""Reports of agents on their calls.

A report is written once, with what follows from it at once (somebody wants no more calls), and the call's mailbox is
told in the same transaction: the fold joins it with the carrier's facts, whichever comes first.
"""

from typing import Literal
from uuid import UUID

from trunkline.dispatch.calls import KIND
from trunkline.store import call_reports, do_not_call, mailboxes
from trunkline.store.call_reports import CallContext, CallReport
from trunkline.store.database import Connection
from trunkline.store.mailboxes import NewEvent
from trunkline.telemetry import get_logger

log = get_logger(__name__)

Taken = Literal["new", "known", "contradicted", "no_call"]

_EVENT = "reported"


async def take(tx: Connection, attempt_id: UUID, report: CallReport) -> Taken:
    """Keep a report, once. The same one again is known; another one is not taken."""
    call = await call_reports.context(tx, attempt_id)
    if call is None:
        return "no_call"
    if not await call_reports.insert(tx, attempt_id, report):
        stored = await call_reports.get(tx, attempt_id)
        return "known" if stored == report else "contradicted"
    if report.opt_out:
        await _list_person(tx, call)
    await mailboxes.append(tx, [_event(attempt_id)])
    log.info("call.reported", attempt_id=str(attempt_id), opt_out=report.opt_out)
    return "new"


async def _list_person(tx: Connection, call: CallContext) -> None:
    """The merchant calls them no more. Leads that wait for them end at their next dial."""
    await do_not_call.add(
        tx, [call.person_phone], owner=call.tenant, reason="asked the agent", actor=f"call {call.attempt_id}"
    )


def _event(attempt_id: UUID) -> NewEvent:
    """Only that there is a report; what it says is read under the locks of the fold."""
    return NewEvent(KIND, str(attempt_id), _EVENT, _EVENT, {"kind": _EVENT})
