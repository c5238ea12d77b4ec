"""Without Valkey: Postgres alone pairs due leads with channels, at a reduced rate, for one process at a time.

That process holds a lease. Another one takes it within seconds when it is not renewed; two that both believe to hold it
do no harm, since the intent locks, and refuses the second.

Without Valkey this class remembers what the intent refused: what a refusal blocks is deferred for as long as Valkey
would have, at most a minute, and for longer each time it is refused again. Otherwise the walk would pick the same few
leads every second, and never those behind them. A flow whose lead was refused lets other flows pass too. A pace, a
cooldown and busy agents do not lengthen the wait: they occur again and again in normal operation.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias
from uuid import UUID, uuid4

from trunkline.dispatch.fallback_walk import PoolWalk, Skips
from trunkline.dispatch.gates import NO_AGENT_BRAKE
from trunkline.model import Blocks, Flow, Grant, Refusal, RefusalReason
from trunkline.store import leaders
from trunkline.store.cooldowns import AccountName
from trunkline.store.database import Database

# For a refusal without a time of its own, and the longest deferral: a limit may have been raised.
DEFER_MIN_S = 1.0
DEFER_MAX_S = 60.0
# How long after its grant a lead's refusal may come.
GRANT_TTL_S = 120.0
# Refusals that do not lengthen the wait.
NOT_LENGTHENING = frozenset({RefusalReason.PACE, RefusalReason.AGENTS, RefusalReason.COOLDOWN})

LEASE = "fallback"
# As long as a grant is valid: the next holder finds the last one's grants committed, or free again.
LEASE_S = 3.0
STANDBY_S = 1.0
CLAIMS_PER_S = 4
# A slot may be free by the next claim: a flow that waits for a busy agent any longer leaves agents idle.
AGENTS_RETRY_S = 1 / CLAIMS_PER_S

# Whether this platform calls the leads of a merchant (reseller, merchant), and not another system.
Includes = Callable[[str, str], bool]
Blocked: TypeAlias = tuple[Blocks, UUID | Flow]


def every_merchant(reseller_id: str, merchant_id: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class FallbackClaim:
    """`grants` is None if another process holds the lease."""

    grants: Sequence[Grant] | None
    retry_in_s: float


@dataclass(frozen=True, slots=True)
class _Deferral:
    until_s: float
    length_s: float


class PostgresFallback:
    def __init__(self, includes: Includes = every_merchant, identity: str = "dialer"):
        self._includes = includes
        self._holder = f"{LEASE}/{identity}/{uuid4().hex[:8]}"
        self._walk = PoolWalk()
        self._deferrals: dict[Blocked, _Deferral] = {}
        # The flows of grants, by attempt id, with their time.
        self._granted: dict[UUID, tuple[Flow, float]] = {}
        self._claimed_at_s = float("-inf")

    async def claim(
        self, database: Database, capacity: int, starts_per_s: int, left_out: Sequence[AccountName] = ()
    ) -> FallbackClaim:
        """A part of one second's starts, and when to request the next. Nothing for accounts in `left_out`."""
        now_s = time.monotonic()
        since_s, self._claimed_at_s = now_s - self._claimed_at_s, now_s
        limit = portion(capacity, starts_per_s, since_s)
        if limit == 0:
            return FallbackClaim((), 1 / CLAIMS_PER_S)
        grants = await self.grants(database, limit, left_out)
        return FallbackClaim(grants, STANDBY_S if grants is None else limit / starts_per_s)

    async def grants(
        self, database: Database, limit: int, left_out: Sequence[AccountName] = ()
    ) -> list[Grant] | None:
        """None if another process has the lease. It is taken in a transaction of its own: other processes that want it
        do not wait for the walk."""
        async with database.connection() as conn:
            if await leaders.acquire(conn, LEASE, self._holder, LEASE_S) is None:
                return None
        now_s = time.monotonic()
        self._forget(now_s)
        async with database.transaction() as tx:
            picked = await self._walk.grants(tx, limit, self._skips(now_s, left_out))
        self._granted |= {grant.attempt_id: (flow, now_s) for grant, flow in picked}
        return [grant for grant, _ in picked]

    def defer(self, refused: Mapping[Grant, Refusal]) -> None:
        """Refusals of one batch count once for what they block together."""
        now_s, earlier = time.monotonic(), dict(self._deferrals)
        for grant, refusal in refused.items():
            flow, _ = self._granted.pop(grant.attempt_id, (None, 0.0))
            for blocked in _blocked(grant, refusal, flow):
                self._deferrals[blocked] = _next_deferral(grant, refusal, earlier.get(blocked), now_s)
            if flow is not None:
                self._defer_behind_flow(grant.lead_id, flow)

    def _defer_behind_flow(self, lead_id: UUID, flow: Flow) -> None:
        """A lead waits longer than its flow, or it would be the flow's first again, and those behind it never."""
        lead_deferral, flow_deferral = (
            self._deferrals.get((Blocks.LEAD, lead_id)),
            self._deferrals.get((Blocks.FLOW, flow)),
        )
        if lead_deferral is not None and flow_deferral is not None:
            until_s = max(lead_deferral.until_s, flow_deferral.until_s + DEFER_MIN_S)
            self._deferrals[Blocks.LEAD, lead_id] = _Deferral(until_s, lead_deferral.length_s)

    def _forget(self, now_s: float) -> None:
        """Drops deferrals that ended as long ago as they lasted, and grants whose refusal can no longer come."""
        self._deferrals = {
            blocked: deferral
            for blocked, deferral in self._deferrals.items()
            if deferral.until_s + deferral.length_s > now_s
        }
        self._granted = {
            attempt_id: (flow, since_s)
            for attempt_id, (flow, since_s) in self._granted.items()
            if now_s - since_s < GRANT_TTL_S
        }

    def _skips(self, now_s: float, left_out: Sequence[AccountName]) -> Skips:
        waiting = [blocked for blocked, deferral in self._deferrals.items() if deferral.until_s > now_s]
        flows = {each for _, each in waiting if isinstance(each, Flow)}

        def is_open(flow: Flow) -> bool:
            return flow not in flows and self._includes(flow.reseller_id, flow.merchant_id)

        return Skips(
            is_open,
            leads=[each for what, each in waiting if what is Blocks.LEAD and isinstance(each, UUID)],
            numbers=[each for what, each in waiting if what is Blocks.NUMBER and isinstance(each, UUID)],
            accounts_of=[each for what, each in waiting if what is Blocks.ACCOUNT and isinstance(each, UUID)],
            accounts=left_out,
        )


def portion(capacity: int, starts_per_s: int, since_s: float) -> int:
    """How many grants to request: 250 ms of the rate, and after a long pause 1 s of it. The next request is delayed so
    that the rate holds."""
    usual = math.ceil(starts_per_s / CLAIMS_PER_S)
    return min(capacity, max(usual, math.floor(starts_per_s * min(since_s, 1.0))))


def _next_deferral(grant: Grant, refusal: Refusal, earlier: _Deferral | None, now_s: float) -> _Deferral:
    """Twice as long as the last time, if that was recent."""
    least_s = 2 * earlier.length_s if earlier is not None and refusal.reason not in NOT_LENGTHENING else 0.0
    length_s = min(DEFER_MAX_S, max(_seconds(grant, refusal), least_s))
    return _Deferral(now_s + length_s, length_s)


def _blocked(grant: Grant, refusal: Refusal, flow: Flow | None) -> Iterator[Blocked]:
    """The walk does not pick a lead that moved or ended, and Postgres knows which channels are held."""
    if refusal.is_gone:
        return
    match refusal.blocks:
        case Blocks.NUMBER | Blocks.ACCOUNT:
            yield refusal.blocks, grant.number_id
        case Blocks.LEAD | Blocks.PERSON:
            yield Blocks.LEAD, grant.lead_id
    if flow is not None and refusal.blocks in (Blocks.LEAD, Blocks.PERSON, Blocks.FLOW):
        yield Blocks.FLOW, flow


def _seconds(grant: Grant, refusal: Refusal) -> float:
    """By Postgres's clock, which dated the grant."""
    if refusal.reason is RefusalReason.AGENTS and refusal.subject != NO_AGENT_BRAKE:
        return AGENTS_RETRY_S
    if refusal.until is None or grant.granted_ms is None:
        return DEFER_MIN_S
    granted_at = datetime.fromtimestamp(grant.granted_ms / 1000, UTC)
    return max(DEFER_MIN_S, (refusal.until - granted_at).total_seconds())
