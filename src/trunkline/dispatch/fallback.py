"""Without Valkey: Postgres alone pairs due leads with channels, at a reduced rate.

Nobody else remembers then what the intent refused, so it is remembered here: what a refusal blocks is set aside for as
long as Valkey would have, at most a minute, and for longer each time that it is refused again. Otherwise the same few
would be picked every second, and whoever is behind them never. A flow whose lead was refused lets the others pass too.
"""

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias
from uuid import UUID

from trunkline.dispatch.refusals import Blocks, Refusal
from trunkline.model import Flow, Grant
from trunkline.store import schedule
from trunkline.store.database import Connection
from trunkline.store.schedule import Aside

# A refusal without a time of its own, and the longest that anything is set aside: a limit may have been raised.
ASIDE_MIN_S = 1.0
ASIDE_MAX_S = 60.0
# The answer about a lead may come so long after its grant.
REMEMBERED_S = 120.0

# Merchants whose leads another system calls.
LeftOut = Callable[[Connection], Awaitable[Sequence[str]]]
Blocked: TypeAlias = tuple[Blocks, UUID | Flow]


async def nobody_left_out(conn: Connection) -> Sequence[str]:
    return ()


@dataclass(frozen=True, slots=True)
class _Wait:
    until_s: float
    length_s: float


class Fallback:
    def __init__(self, left_out: LeftOut = nobody_left_out):
        self._left_out = left_out
        self._waits: dict[Blocked, _Wait] = {}
        # The flows of grants, by attempt id, with their time.
        self._granted: dict[UUID, tuple[Flow, float]] = {}

    async def grants(self, conn: Connection, limit: int) -> list[Grant]:
        now_s = time.monotonic()
        self._forget(now_s)
        found = await schedule.fallback_grants(conn, limit, self._aside(now_s, await self._left_out(conn)))
        self._granted |= {grant.attempt_id: (flow, now_s) for grant, flow in found}
        return [grant for grant, _ in found]

    def set_aside(self, refused: Sequence[Refusal]) -> None:
        now_s = time.monotonic()
        for refusal in refused:
            flow, _ = self._granted.pop(refusal.grant.attempt_id, (None, 0.0))
            for blocked in _blocked(refusal, flow):
                self._waits[blocked] = self._next_wait(blocked, _seconds(refusal), now_s)

    def _next_wait(self, blocked: Blocked, seconds: float, now_s: float) -> _Wait:
        """Twice as long as the last time, if that was lately."""
        before = self._waits.get(blocked)
        length_s = min(ASIDE_MAX_S, max(seconds, 2 * before.length_s if before else 0.0))
        return _Wait(now_s + length_s, length_s)

    def _forget(self, now_s: float) -> None:
        """What has been out of the way for as long as it had to wait, and grants of which nothing will be heard."""
        self._waits = {
            blocked: wait for blocked, wait in self._waits.items() if wait.until_s + wait.length_s > now_s
        }
        self._granted = {
            attempt_id: (flow, since_s)
            for attempt_id, (flow, since_s) in self._granted.items()
            if now_s - since_s < REMEMBERED_S
        }

    def _aside(self, now_s: float, left_out: Sequence[str]) -> Aside:
        waiting = [blocked for blocked, wait in self._waits.items() if wait.until_s > now_s]
        return Aside(
            merchants=left_out,
            leads=[each for what, each in waiting if what is Blocks.LEAD and isinstance(each, UUID)],
            flows=[each for _, each in waiting if isinstance(each, Flow)],
            numbers=[each for what, each in waiting if what is Blocks.NUMBER and isinstance(each, UUID)],
            accounts_of=[each for what, each in waiting if what is Blocks.ACCOUNT and isinstance(each, UUID)],
        )


def _blocked(refusal: Refusal, flow: Flow | None) -> Iterator[Blocked]:
    """A lead that moved or ended is not picked again, and Postgres sees who has a channel."""
    if refusal.is_gone:
        return
    match refusal.blocks:
        case Blocks.NUMBER | Blocks.ACCOUNT:
            yield refusal.blocks, refusal.grant.number_id
        case Blocks.LEAD | Blocks.PERSON:
            yield Blocks.LEAD, refusal.grant.lead_id
    if flow is not None and refusal.blocks in (Blocks.LEAD, Blocks.PERSON, Blocks.FLOW):
        yield Blocks.FLOW, flow


def _seconds(refusal: Refusal) -> float:
    """By Postgres' clock, which dated the grant."""
    if refusal.until is None or refusal.grant.granted_ms is None:
        return ASIDE_MIN_S
    granted_at = datetime.fromtimestamp(refusal.grant.granted_ms / 1000, UTC)
    return max(ASIDE_MIN_S, (refusal.until - granted_at).total_seconds())
