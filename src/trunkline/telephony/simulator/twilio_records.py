"""A call as Twilio's REST API shows it, and the filters of its list."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from trunkline.telephony.simulator.calls import SimulatedCall
from trunkline.telephony.simulator.durations import duration_s
from trunkline.telephony.simulator.twilio_language import rfc2822, status_of

PRICE_PER_MINUTE = 0.0140


def resource(call: SimulatedCall) -> dict[str, Any]:
    dial = call.dial
    talked_s = duration_s(call)
    uri = f"/2010-04-01/Accounts/{call.account.sid}/Calls/{call.sid}"
    return {
        "sid": call.sid,
        "account_sid": call.account.sid,
        "to": call.order.to,
        "to_formatted": call.order.to,
        "from": call.order.from_,
        "from_formatted": call.order.from_,
        "status": _shown(call),
        "direction": "outbound-api" if call.order.direction == "outbound" else "inbound",
        "date_created": rfc2822(call.created_at),
        "date_updated": rfc2822(call.updated_at),
        "start_time": rfc2822(dial.started_at) if dial else None,
        "end_time": rfc2822(dial.ended_at) if dial and dial.ended_at else None,
        "duration": str(talked_s) if talked_s else None,
        "queue_time": str(call.queue_ms),
        "answered_by": None,
        "api_version": "2010-04-01",
        # At Twilio it appears minutes after the end, here at once.
        "price": f"-{PRICE_PER_MINUTE * -(-talked_s // 60):.5f}" if talked_s else None,
        "price_unit": "USD",
        "parent_call_sid": None,
        "phone_number_sid": None,
        "forwarded_from": None,
        "group_sid": None,
        "caller_name": None,
        "trunk_sid": None,
        "uri": f"{uri}.json",
        "subresource_uris": {"recordings": f"{uri}/Recordings.json"},
    }


def call_filter(query: Mapping[str, str]) -> Callable[[SimulatedCall], bool]:
    from_, status = query.get("From"), query.get("Status")
    after, before = _instant(query.get("StartTime>")), _instant(query.get("StartTime<"))
    over_after, over_before = _instant(query.get("EndTime>")), _instant(query.get("EndTime<"))

    def wanted(call: SimulatedCall) -> bool:
        # A call that was not dialled yet has no start time, so no filter by start time matches it.
        started = call.dial.started_at if call.dial else None
        ended = call.dial.ended_at if call.dial else None
        return (
            (not from_ or call.order.from_ == from_)
            and (not status or status == _shown(call))
            and (after is None or (started is not None and int(started) >= after))
            and (before is None or (started is not None and int(started) <= before))
            and (over_after is None or (ended is not None and int(ended) >= over_after))
            and (over_before is None or (ended is not None and int(ended) <= over_before))
        )

    return wanted


def _instant(text: str | None) -> float | None:
    if not text:
        return None
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _shown(call: SimulatedCall) -> str:
    """The REST API has no "initiated": until it rings, a dialled call is shown as queued."""
    return "queued" if call.state == "initiated" else status_of(call)
