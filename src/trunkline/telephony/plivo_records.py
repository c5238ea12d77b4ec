"""Calls as Plivo's REST API shows them: queued and live ones by status, ended ones by the cause of their end."""

from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from typing import Any

from trunkline.telephony.carrier import CallView, EndReason
from trunkline.telephony.forms import whole
from trunkline.telephony.plivo_webhooks import e164, state_of


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
        created_at=_moment(row.get("session_start"), UTC),
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
        created_at=_moment(row.get("initiation_time")),
        ended_at=_moment(row.get("end_time")),
        duration_s=whole(row.get("call_duration")) if reason == "completed" else None,
    )


_STATUSES: Mapping[EndReason, str] = {
    "completed": "completed",
    "busy": "busy",
    "no_answer": "no-answer",
    "failed": "failed",
    "canceled": "cancel",
}


def _reason(row: Mapping[str, Any]) -> EndReason:
    """A record of a call names its cause, never its status: answered is what has a time of answer."""
    if row.get("answer_time"):
        return "completed"
    cause = str(row.get("hangup_cause_name", "")).lower()
    if "busy" in cause:
        return "busy"
    if "no answer" in cause or "timeout" in cause:
        return "no_answer"
    return "canceled" if "cancel" in cause else "failed"


def _moment(text: object, zone: tzinfo | None = None) -> datetime | None:
    """Records are told in the console's time zone, with its offset. Without one a time says nothing."""
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    if moment is None or moment.tzinfo:
        return moment
    return moment.replace(tzinfo=zone) if zone else None
