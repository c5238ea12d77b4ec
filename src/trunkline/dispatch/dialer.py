"""The dialer: takes grants from the match and dials them, batch by batch.

    match ─► slots ─► intent ─► send ─► results
      ▲         │ refused: given back, and the cause is blocked (`grants`)
      └── wakeup, next due time, 1 s

The dialer matches a lead and commits its call a little ahead of the due time, and sends the call at the due time: so
the call is on time however long match and intent took, and leads that fall due together share a match and a
transaction. Overdue calls are sent at once.

The transaction of the intent begins while the match is under way. Under low load a round waits for its batch. When a
batch was full, the next one begins beside it.

Without Valkey the grants come from Postgres alone, at a reduced, stated rate, through the same intent; one dialer of
all requests them (`fallback`). Nothing is sent that is not committed. A dialer that dies between two steps leaves a
trace that a loop finds: a holder without an attempt, or an attempt still `dialing`.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from trunkline.bus import epoch, schedule
from trunkline.bus.connection import Bus, DialerWakeups
from trunkline.clock import Clock
from trunkline.crashpoint import crash_point
from trunkline.dispatch.fallback import PostgresFallback
from trunkline.dispatch.grants import Batches, ClockOffset, RunPrecheck, SlotSource
from trunkline.dispatch.intent import Rules
from trunkline.dispatch.sender import Sender
from trunkline.errors import BusUnavailable, ProjectionLost
from trunkline.loops.base import PROMPT_BACKOFF_MAX_S, Loop
from trunkline.model import Grant, new_text_id
from trunkline.store.cooldowns import AccountName
from trunkline.store.database import Database
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

# The share of `ahead_s` in which leads that fall due are gathered; the remainder is for the match and the intent.
GATHER_SHARE = 0.5
# How often the dialer checks whether accounts are still left out: the end of one of their calls wakes no dialer.
LEFT_OUT_RECHECK_S = 0.05
# While Valkey is unavailable, the dialer retries it this often or less: see `next_try_s`.
VALKEY_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class DialerLimits:
    # A match costs 0.1 ms for one grant and under 1 ms for 16, and blocks Valkey meanwhile.
    batch_max: int = 16
    # Intents that run at the same time while the match has more grants than a batch can hold.
    batches_max: int = 3
    # Includes calls that wait for their due time: 50 at 500 calls a second. Leads in their pre-check do not count: one
    # slow tenant's system would stop every flow, and their number is bounded per merchant.
    in_flight_max: int = 192
    # Once `in_flight_max` is reached, an account with fewer calls in flight than this is still served, so that one
    # whose carrier hangs delays no other. At most twice `in_flight_max` calls are in flight.
    account_share: int = 48
    wait_max_s: float = 1.0
    # The dialer prepares a call at most this long before its due time: the first part is for gathering, the remainder
    # for a match and an intent, which take up to 40 ms on a busy machine.
    ahead_s: float = 0.1
    # Without Valkey, for all dialers together.
    fallback_starts_per_s: int = 20


class Dialer(Loop):
    name = "dialer"
    backoff_max_s = PROMPT_BACKOFF_MAX_S

    def __init__(
        self,
        database: Database,
        bus: Bus,
        clock: Clock,
        sender: Sender,
        identity: str,
        rules: Rules,
        limits: DialerLimits,
        precheck: RunPrecheck | None,
        fallback: PostgresFallback,
        slots: SlotSource,
    ):
        super().__init__(limits.wait_max_s)
        self._database = database
        self._bus = bus
        self._sender = sender
        self._limits = limits
        self._ahead_ms = round(limits.ahead_s * 1000)
        self._offset = ClockOffset(database, bus, clock)
        self._postgres_fallback = fallback
        self._slots = slots
        self._without_agents = sorted(rules.agents.carriers_without_streams)
        self._batches = Batches(
            database, bus, clock, sender, identity, rules, self._offset, precheck, fallback, slots
        )
        self._unreachable = rules.unreachable
        self._left_out: list[AccountName] = []
        self._running: set[asyncio.Task[int]] = set()
        self._wakeups = DialerWakeups(bus)
        # When the next match is worthwhile, by the event loop's clock.
        self._next_at_s: float | None = None
        self._has_more = False
        self._is_without_valkey = False
        self._valkey_retry_at_s = float("-inf")

    async def run_once(self) -> int:
        """One round. Returns the number of calls that are in flight because of it. A full batch keeps running while
        the next round begins: its grants are counted."""
        await self._wait_for_capacity()
        metrics.CALLS_IN_FLIGHT.set(self._sender.in_flight)
        await self._batches.disown_lost()
        grants = await self._grants()
        if not grants:
            return 0
        crash_point("dialer.after_match")
        batch = asyncio.create_task(self._batches.dial(grants), name="batch")
        self._running.add(batch)
        if self._has_more:
            return len(grants)
        sent = await self._finished(batch)
        if self._is_without_valkey:
            metrics.FALLBACK_DIALS.inc(sent)
        return sent

    async def wait(self) -> None:
        """Until a wakeup, or until the time that the match named: a lead falls due, a flow or a number is unblocked."""
        timeout_s = self.interval_s
        if self._next_at_s is not None:
            timeout_s = min(timeout_s, self._next_at_s - asyncio.get_running_loop().time())
        if self._left_out:
            timeout_s = min(timeout_s, LEFT_OUT_RECHECK_S)
        if timeout_s <= 0:
            return
        try:
            await self._wakeups.wait(timeout_s)
        except BusUnavailable:
            await self.pause(timeout_s)

    async def drain(self) -> None:
        await self._wakeups.close()
        if self._running:
            await asyncio.wait(self._running)
        await self._batches.drain()

    async def _wait_for_capacity(self) -> None:
        """Wait until another batch may begin. An error of an earlier batch fails this round."""
        while len(self._running) >= self._limits.batches_max:
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            await self._collect()
        await self._collect()
        while self._sender.in_flight >= 2 * self._limits.in_flight_max:
            await asyncio.wait(self._sender.tasks, return_when=asyncio.FIRST_COMPLETED)

    async def _collect(self) -> None:
        for batch in [each for each in self._running if each.done()]:
            await self._finished(batch)

    async def _finished(self, batch: "asyncio.Task[int]") -> int:
        try:
            return await batch
        finally:
            self._running.discard(batch)

    async def _grants(self) -> Sequence[Grant]:
        self._left_out = self._accounts_left_out()
        # A batch whose pre-checks took long may have sent calls since capacity was checked.
        capacity_max = self._limits.in_flight_max * (2 if self._left_out else 1)
        capacity = max(0, min(self._limits.batch_max, capacity_max - self._sender.in_flight))
        now_s = asyncio.get_running_loop().time()
        if self._is_without_valkey and now_s < self._valkey_retry_at_s:
            return await self._fallback(capacity)
        try:
            return await self._match(capacity)
        except BusUnavailable as error:
            if not self._is_without_valkey:
                log.warning("dialer.without_valkey", reason=str(error))
            self._is_without_valkey = True
            # A projection that is being rebuilt answers immediately, and is available again within seconds.
            is_away = not isinstance(error, ProjectionLost)
            failed_s = asyncio.get_running_loop().time()
            self._valkey_retry_at_s = next_try_s(now_s, failed_s) if is_away else failed_s
            return await self._fallback(capacity)

    def _accounts_left_out(self) -> list[AccountName]:
        """Accounts that this process cannot reach and, at full capacity, those that have used their share of it."""
        left_out = self._unreachable.accounts()
        if self._sender.in_flight >= self._limits.in_flight_max:
            left_out += self._sender.busiest(self._limits.account_share)
        return left_out

    async def _match(self, capacity: int) -> Sequence[Grant]:
        await epoch.ensure(self._bus)
        ids = [new_text_id() for _ in range(capacity)]
        offset_ms = await self._offset.ms()
        agents = await self._slots.free_slots()
        match = await schedule.match(
            self._bus,
            ids,
            clock_offset_ms=offset_ms,
            ahead_ms=self._ahead_ms,
            gather_ms=round(self._ahead_ms * GATHER_SHARE),
            agents=None if agents is None else {"*": agents.common, **agents.own},
            without_agents=self._without_agents,
            without_accounts=self._left_out,
        )
        self._is_without_valkey = False
        self._set_next_match(match.next_in_s)
        _measure(match.grants)
        if match.closed:
            await self._batches.reopen(match.closed)
        return match.grants

    def _set_next_match(self, seconds: float | None) -> None:
        self._has_more = seconds == 0
        self._next_at_s = None if seconds is None else asyncio.get_running_loop().time() + seconds

    async def _fallback(self, capacity: int) -> Sequence[Grant]:
        """Postgres alone pairs leads with channels, a few times a second."""
        claim = await self._postgres_fallback.claim(
            self._database, capacity, self._limits.fallback_starts_per_s, self._left_out
        )
        self._set_next_match(claim.retry_in_s)
        return claim.grants or ()


def next_try_s(began_s: float, failed_s: float) -> float:
    """When the dialer tries Valkey again. At most 33 % of the time is spent on tries: a server that does not even
    refuse takes 2 s each time, and no call is dialled meanwhile."""
    return failed_s + max(VALKEY_RETRY_S, 2 * (failed_s - began_s))


def _measure(grants: Sequence[Grant]) -> None:
    metrics.GRANTS.inc(len(grants))
    for grant in grants:
        if grant.granted_ms is not None:
            metrics.GRANT_WAIT_SECONDS.observe(max(0, grant.granted_ms - grant.due_ms) / 1000)
