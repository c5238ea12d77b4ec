"""Calls as Vapi's REST API shows them."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from trunkline.telephony.carrier import CallView
from trunkline.telephony.costs import cost_of
from trunkline.telephony.reply_rules import our_fault
from trunkline.telephony.vapi_webhooks import STATES, attempt_of, end_reason, moment, seconds_between

# Other types are inbound: by phone, or from a web page.
OUTBOUND = "outboundPhoneCall"


def view_of(call: Mapping[str, Any], numbers: Mapping[str, str]) -> CallView | None:
    """`numbers` are Vapi's ids of the account's numbers, by number."""
    status = str(call.get("status", ""))
    state = STATES.get(status)
    if not isinstance(call.get("id"), str) or state is None:
        return None
    customer = call.get("customer")
    ended = str(call.get("endedReason") or "") if state == "ended" else ""
    by_id = {number_id: number for number, number_id in numbers.items()}
    return CallView(
        call_id=call["id"],
        to=str(customer.get("number", "")) if isinstance(customer, dict) else "",
        from_=by_id.get(str(call.get("phoneNumberId")), ""),
        status=status,
        state=state,
        reason=end_reason(ended) if state == "ended" else None,
        fault=our_fault("vapi", ended),
        created_at=moment(call.get("createdAt")),
        started_at=moment(call.get("startedAt")),
        ended_at=moment(call.get("endedAt")),
        duration_s=seconds_between(call.get("startedAt"), call.get("endedAt")),
        attempt_id=attempt_of(call),
        # 0 until the figure is complete.
        cost=cost_of(call.get("cost") or None),
        direction="outbound" if call.get("type", OUTBOUND) == OUTBOUND else "inbound",
    )


def control_url(call: Mapping[str, Any], base_url: str) -> str | None:
    """Each live call has a control URL on a host of its own. It is used only if the host is the carrier's."""
    monitor = call.get("monitor")
    url = monitor.get("controlUrl") if isinstance(monitor, dict) else None
    try:
        host, home = urlsplit(str(url)).hostname or "", urlsplit(base_url).hostname or ""
    except ValueError:
        return None
    is_theirs = host == home or host.endswith(f".{home.removeprefix('api.')}")
    return str(url) if url and is_theirs else None
