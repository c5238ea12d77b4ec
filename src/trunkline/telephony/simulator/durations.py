"""How long a call lasted, in simulated seconds, rounded up as a bill is; and when things happened, as text."""

from datetime import UTC, datetime

from trunkline.telephony.simulator.calls import Call


def duration_s(call: Call, time_scale: float) -> int:
    """0 for a call that nobody answered."""
    dial = call.dial
    if dial is None or dial.answered_at is None or dial.ended_at is None:
        return 0
    return max(1, round((dial.ended_at - dial.answered_at) / time_scale))


def moment(instant: float) -> datetime:
    return datetime.fromtimestamp(instant, UTC)
