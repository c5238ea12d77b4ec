"""Appends a carrier's reply to a query about a call to the call's mailbox, as if the carrier had sent it: facts are
folded in one way only."""

from datetime import datetime
from uuid import UUID

from msgspec.structs import asdict

from trunkline.dispatch.calls import KIND, URGENT
from trunkline.mailbox.inbox import Inbox
from trunkline.states import AttemptState
from trunkline.store.mailboxes import NewEvent
from trunkline.telephony.carrier import CallState, CallView

_KINDS = {"queued": "initiated", "ringing": "ringing", "answered": "answered", "ended": "ended"}
_ORDER: tuple[CallState, ...] = ("queued", "ringing", "answered", "ended")
_KNOWN = {
    AttemptState.ACCEPTED: 0,
    AttemptState.RINGING: 1,
    AttemptState.ANSWERED: 2,
    AttemptState.ENDED: 3,
}


def is_progress(known: AttemptState, call: CallView) -> bool:
    """Whether the carrier's state of the call is later than ours."""
    return _ORDER.index(call.state) > _KNOWN.get(known, -1)


async def append(inbox: Inbox, attempt_id: UUID, call: CallView, now: datetime) -> None:
    kind = _KINDS[call.state]
    await inbox.append(
        NewEvent(
            kind=KIND,
            key=str(attempt_id),
            dedupe_key=f"asked:{call.call_id}:{call.state}",
            type=kind,
            payload={
                "kind": kind,
                "call_id": call.call_id,
                "at": (call.ended_at or call.started_at or now).isoformat(),
                "reason": call.reason,
                "fault": call.fault,
                "duration_s": call.duration_s,
                "raw": {"status": call.status, "asked": "true"},
                **({"cost": asdict(call.cost)} if call.cost else {}),
            },
            urgent=kind in URGENT,
        )
    )
