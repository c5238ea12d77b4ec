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
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias
from uuid import UUID, uuid4

from trunkline.dispatch.gates import NO_AGENT_BRAKE
from trunkline.model import Blocks, Flow, Grant, Refusal, RefusalReason, new_id
from trunkline.store import fallback as store
from trunkline.store import leaders
from trunkline.store.cooldowns import AccountName
from trunkline.store.database import Connection, Database
from trunkline.store.fallback import FIRST_NUMBER, DueLead, FlowHead, FreeChannels

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

# One read: the number of pools, fewer at first, and per pool the number of numbers and of flows; more for a single
# pool.
POOLS_FIRST = 4
POOLS_MAX = 16
EACH_MIN = 16
EACH_MAX = 64
# A request reads on until it has seen this many pools, numbers and flows.
ROWS_READ_MAX = 400
# A read takes a few milliseconds. If Postgres is so slow that it takes a second, the walk does not add to its load.
TIMEOUT_MS = 1000

# Whether this platform calls the leads of a merchant (reseller, merchant), and not another system.
Includes = Callable[[str, str], bool]
Blocked: TypeAlias = tuple[Blocks, UUID | Flow]
Channel: TypeAlias = tuple[UUID, int]


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


@dataclass(frozen=True, slots=True)
class Skips:
    """What the walk leaves out: flows that are not open, and recently refused subjects. `accounts_of` are numbers whose
    accounts are in a cooldown, with all of their numbers."""

    is_open: Callable[[Flow], bool] = lambda flow: True
    leads: Sequence[UUID] = ()
    numbers: Sequence[UUID] = ()
    accounts_of: Sequence[UUID] = ()
    # Accounts by carrier and name.
    accounts: Sequence[AccountName] = ()


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
        # Without deferrals that ended as long ago as they lasted, and grants whose refusal can no longer come.
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
                # Twice as long as the last time, if that was recent.
                last, lengthens = earlier.get(blocked), refusal.reason not in NOT_LENGTHENING
                least_s = 2 * last.length_s if last is not None and lengthens else 0.0
                length_s = min(DEFER_MAX_S, max(_seconds(grant, refusal), least_s))
                self._deferrals[blocked] = _Deferral(now_s + length_s, length_s)
            lead_deferral = self._deferrals.get((Blocks.LEAD, grant.lead_id))
            flow_deferral = self._deferrals.get((Blocks.FLOW, flow)) if flow else None
            if lead_deferral is not None and flow_deferral is not None:
                # A lead waits longer than its flow, or it would be the flow's first again, and those behind it never.
                until_s = max(lead_deferral.until_s, flow_deferral.until_s + DEFER_MIN_S)
                self._deferrals[Blocks.LEAD, grant.lead_id] = _Deferral(until_s, lead_deferral.length_s)

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


@dataclass(frozen=True, slots=True)
class PoolPage:
    """One pool. `is_last`: no flow comes after these. `is_all`: the pool has no other numbers."""

    pool_id: str
    channels: "deque[Channel]"
    flows: Sequence[FlowHead]
    is_last: bool
    is_all: bool


class PoolWalk:
    """The walk over pools and their flows that pairs due leads with free channels from Postgres alone.

        pools, one after the other ─► some numbers with free channels ─► flows, one after the other ─► a lead of each

    Every flow gets one lead before any gets its second: the walk goes round, and every request continues where the last
    one stopped. It leaves a pool when all of its flows had their turn, or when no channel is free there; the flows that
    had no turn come first on the next visit. So no flow waits for ever, however little one request reads.

    Reads are bounded, and the time of a request depends neither on how many leads wait nor on how many numbers there
    are.
    """

    def __init__(self) -> None:
        # The pool that the walk left last.
        self._pool_id = ""
        # The last flow that had its turn, in pools that were left before their last.
        self._flows: dict[str, Flow] = {}
        # The last number that gave a channel, by pool.
        self._numbers: dict[str, UUID] = {}

    async def grants(self, tx: Connection, limit: int, skips: Skips) -> list[tuple[Grant, Flow]]:
        """Up to `limit` leads, each with a channel of its own and with its flow."""
        claim = _Claim(limit, skips)
        await store.set_bounds(tx, timeout_ms=TIMEOUT_MS)
        while claim.remaining and claim.rows_read < ROWS_READ_MAX:
            pools_max = POOLS_MAX if claim.rows_read else POOLS_FIRST
            pools = await store.waiting_pools(tx, after=self._pool_id, limit=pools_max)
            if claim.idle.issuperset(pools):
                break
            for page in await self._read_pages(tx, pools, claim):
                if not self._visit(page, claim):
                    break
                self._pool_id = page.pool_id
        return claim.picked

    async def _read_pages(self, tx: Connection, pools: Sequence[str], claim: "_Claim") -> list[PoolPage]:
        each_max = max(EACH_MIN, EACH_MAX // len(pools))
        numbers = await store.free_channels(
            tx,
            {pool_id: self._numbers.get(pool_id, FIRST_NUMBER) for pool_id in pools},
            numbers_max=each_max,
            channels_max=claim.limit,
            not_numbers=claim.skips.numbers,
            not_accounts_of=claim.skips.accounts_of,
            not_accounts=claim.skips.accounts,
        )
        channels = {pool_id: deque(claim.untaken(numbers[pool_id])) for pool_id in pools}
        for pool_id in pools:
            if not channels[pool_id] and numbers[pool_id]:
                self._numbers[pool_id] = numbers[pool_id][-1].number_id
        flows = await store.flow_heads(
            tx,
            {pool_id: self._flows.get(pool_id) for pool_id in pools if channels[pool_id]},
            flows_max=each_max,
            not_leads=[*claim.skips.leads, *claim.leads],
        )
        claim.rows_read += len(pools) + sum(map(len, numbers.values())) + sum(map(len, flows.values()))
        return [
            PoolPage(
                pool_id,
                channels[pool_id],
                flows.get(pool_id, ()),
                len(flows.get(pool_id, ())) < each_max,
                len(numbers[pool_id]) < each_max,
            )
            for pool_id in pools
        ]

    def _visit(self, page: PoolPage, claim: "_Claim") -> bool:
        """Whether the walk may leave this pool."""
        if not page.channels:
            if page.is_all:
                claim.idle.add(page.pool_id)
            return True
        if page.pool_id not in self._flows:
            claim.whole.add(page.pool_id)
        for head in page.flows:
            if not claim.remaining:
                return False
            if not page.channels:
                return True
            self._flows[page.pool_id] = head.flow
            if head.lead is not None and claim.skips.is_open(head.flow):
                channel = page.channels.popleft()
                claim.take(head.flow, head.lead, channel)
                self._numbers[page.pool_id] = channel[0]
        if page.is_last:
            self._flows.pop(page.pool_id, None)
            if page.pool_id in claim.whole:
                claim.idle.add(page.pool_id)
        return page.is_last


class _Claim:
    """The grants of one request, and how much it has read."""

    def __init__(self, limit: int, skips: Skips):
        self.limit = limit
        self.skips = skips
        self.picked: list[tuple[Grant, Flow]] = []
        self.rows_read = 0
        # Since the last grant: pools whose flows are read from the first one on, and those that were read to the last.
        # When only such pools are left, there is nothing to grant.
        self.whole: set[str] = set()
        self.idle: set[str] = set()
        self._channels: set[Channel] = set()

    @property
    def remaining(self) -> int:
        return self.limit - len(self.picked)

    @property
    def leads(self) -> list[UUID]:
        return [grant.lead_id for grant, _ in self.picked]

    def untaken(self, numbers: Sequence[FreeChannels]) -> Iterator[Channel]:
        """One channel of each number before the second of any."""
        for place in range(max((len(number.free) for number in numbers), default=0)):
            for number in numbers:
                if place < len(number.free) and (number.number_id, number.free[place]) not in self._channels:
                    yield number.number_id, number.free[place]

    def take(self, flow: Flow, lead: DueLead, channel: Channel) -> None:
        number_id, channel_no = channel
        grant = Grant(
            new_id(),
            lead.lead_id,
            lead.version,
            number_id,
            channel_no,
            lead.due_ms,
            lead.read_ms,
            merchant_id=flow.merchant_id,
            campaign_id=flow.campaign_id,
        )
        self.picked.append((grant, flow))
        self._channels.add(channel)
        self.whole.clear()
        self.idle.clear()
