"""The doubt brake: an account whose answers cannot be trusted gets one probe every five seconds.

A minute of 500s from a carrier would otherwise put every channel in doubt, and each keeps its channel for up to ten
minutes. With the brake on, a few calls find out whether the carrier works again, and the rest wait undialled.
"""

from collections.abc import Callable

from trunkline.loops.base import Loop
from trunkline.store import schedule
from trunkline.store.database import Database
from trunkline.telemetry import get_logger

log = get_logger(__name__)

PROBES_PER_S = 0.2
DOUBTS_MIN = 3
DOUBTS_SHARE = 0.05

Pace = Callable[[str, str], float | None]


def is_doubtful(in_doubt: int, channels: int) -> bool:
    """More than max(3, 5 %) of an account's channels."""
    return in_doubt > max(DOUBTS_MIN, DOUBTS_SHARE * channels)


class DoubtBrake(Loop):
    name = "doubt_brake"

    def __init__(self, database: Database, pace: Pace, interval_s: float = 2.0):
        super().__init__(interval_s)
        self._database = database
        self._pace = pace
        self._braked: frozenset[tuple[str, str]] = frozenset()

    async def run_once(self) -> int:
        """The number of accounts that are braked."""
        async with self._database.connection() as conn:
            doubts = await schedule.doubts(conn)
        braked = frozenset(
            (doubt.carrier, doubt.account) for doubt in doubts if is_doubtful(doubt.in_doubt, doubt.channels)
        )
        for carrier, account in braked - self._braked:
            log.error("account.braked", carrier=carrier, account=account)
        for carrier, account in self._braked - braked:
            log.info("account.released", carrier=carrier, account=account)
        self._braked = braked
        return len(braked)

    def starts_per_s(self, carrier: str, account: str) -> float | None:
        """The pace of an account: its own, or that of a probe."""
        return PROBES_PER_S if (carrier, account) in self._braked else self._pace(carrier, account)
