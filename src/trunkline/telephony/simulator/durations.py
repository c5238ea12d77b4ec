"""The duration of a call by its own times, rounded up as for billing; and times as text."""

from datetime import UTC, datetime
from math import ceil

from trunkline.telephony.simulator.calls import SimulatedCall


def duration_s(call: SimulatedCall) -> int:
    """0 for an unanswered call. A call that ended within a second lasted one, whatever its intended talk time, so that
    the duration matches the record's times."""
    dial = call.dial
    if dial is None or dial.answered_at is None or dial.ended_at is None:
        return 0
    return max(1, ceil(dial.ended_at - dial.answered_at))


def moment(instant: float) -> datetime:
    return datetime.fromtimestamp(instant, UTC)
