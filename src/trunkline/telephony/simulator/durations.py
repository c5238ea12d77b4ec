"""How long a call lasted, as its own times have it, rounded up as a bill is; and when things happened, as text."""

from datetime import UTC, datetime
from math import ceil

from trunkline.telephony.simulator.calls import SimulatedCall


def duration_s(call: SimulatedCall) -> int:
    """0 for a call that nobody answered. A call that is over in a second lasted one, however long its people would have
    talked: whoever reads the record compares it with its times."""
    dial = call.dial
    if dial is None or dial.answered_at is None or dial.ended_at is None:
        return 0
    return max(1, ceil(dial.ended_at - dial.answered_at))


def moment(instant: float) -> datetime:
    return datetime.fromtimestamp(instant, UTC)
