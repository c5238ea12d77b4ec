"""The walk over pools and their flows that pairs due leads with free channels from Postgres alone.

    pools, one after the other ─► some numbers with free channels ─► flows, one after the other ─► one lead of each

Every flow gets one lead before any gets its second: the walk goes round, and every request continues where the last one
stopped. It leaves a pool when all of its flows had their turn, or when no channel is free there; the flows that had no
turn come first on the next visit. So no flow waits for ever, however little one request reads.

Reads are bounded, and the time of a request depends neither on how many leads wait nor on how many numbers there are.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from trunkline.model import Flow, Grant, new_id
from trunkline.store import fallback as store
from trunkline.store.cooldowns import AccountName
from trunkline.store.database import Connection
from trunkline.store.fallback import FIRST_NUMBER, DueLead, FlowHead, FreeChannels

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

Channel: TypeAlias = tuple[UUID, int]


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


@dataclass(frozen=True, slots=True)
class PoolPage:
    """One pool. `is_last`: no flow comes after these. `is_all`: the pool has no other numbers."""

    pool_id: str
    channels: "deque[Channel]"
    flows: Sequence[FlowHead]
    is_last: bool
    is_all: bool


class PoolWalk:
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
