"""Calls as Plivo's REST API shows them: queued and live ones by status, ended ones by the cause of their end."""

from collections.abc import Mapping
from datetime import UTC
from typing import Any

from trunkline.moments import read_moment
from trunkline.telephony.carrier import CallView, Direction, EndReason
from trunkline.telephony.costs import cost_of
from trunkline.telephony.forms import whole
from trunkline.telephony.plivo_webhooks import e164, state_of
from trunkline.telephony.reply_rules import our_fault


def live_view(row: Mapping[str, Any]) -> CallView | None:
    status = str(row.get("call_status", ""))
    state = state_of(status)
    call_id = row.get("request_uuid") or row.get("call_uuid")
    if not isinstance(call_id, str) or state is None or state == "ended":
        return None
    return CallView(
        call_id=call_id,
        to=e164(str(row.get("to", ""))),
        from_=e164(str(row.get("from", ""))),
        status=status,
        state=state,
        created_at=read_moment(row.get("session_start"), UTC),
        direction=_direction(row.get("direction")),
    )


def ended_view(row: object) -> CallView | None:
    if not isinstance(row, dict) or not isinstance(row.get("call_uuid"), str):
        return None
    reason = _reason(row)
    return CallView(
        call_id=row["call_uuid"],
        to=e164(str(row.get("to_number", ""))),
        from_=e164(str(row.get("from_number", ""))),
        status=_STATUSES[reason],
        state="ended",
        reason=reason,
        fault=our_fault("plivo", str(row.get("hangup_cause_code") or "")),
        # In the console's time zone, with its offset. A time without an offset is ambiguous.
        created_at=read_moment(row.get("initiation_time")),
        ended_at=read_moment(row.get("end_time")),
        duration_s=whole(row.get("call_duration")) if reason == "completed" else None,
        direction=_direction(row.get("call_direction")),
        cost=cost_of(row.get("total_amount")),
    )


_STATUSES: Mapping[EndReason, str] = {
    "completed": "completed",
    "busy": "busy",
    "no_answer": "no-answer",
    "failed": "failed",
    "canceled": "cancel",
}


def _direction(word: object) -> Direction:
    return "inbound" if word == "inbound" else "outbound"


def _reason(row: Mapping[str, Any]) -> EndReason:
    """A record of a call has its cause, never its status: it was answered if it has an answer time."""
    if row.get("answer_time"):
        return "completed"
    cause = str(row.get("hangup_cause_name", "")).lower()
    if "busy" in cause:
        return "busy"
    if "no answer" in cause or "timeout" in cause:
        return "no_answer"
    return "canceled" if "cancel" in cause else "failed"
