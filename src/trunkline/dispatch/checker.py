"""The in-doubt checker: finds attempts without recent events, and queries the carrier about them.

It appends what it learns to the call's mailbox, as if the carrier had sent it: facts are folded in one way only.
`absent` and `unknown` are our own conclusions, and are settled here.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from uuid import UUID

from trunkline.bus.connection import Bus
from trunkline.clock import Clock
from trunkline.dispatch import queried_calls, unexplained
from trunkline.dispatch.checks import (
    RETRY_S,
    CheckLimits,
    FreeChannel,
    MarkInDoubt,
    QueryCall,
    QueryList,
    Resolution,
    Wait,
    next_step,
)
from trunkline.dispatch.settlement import Settlement, Settler
from trunkline.leads import settle_decision
from trunkline.leads.retries import Retries
from trunkline.loops.base import Loop
from trunkline.mailbox.inbox import Inbox
from trunkline.model import Finish, LeadDecision, Outcome
from trunkline.states import AttemptState
from trunkline.store import attempts, cooldowns, live_calls
from trunkline.store.attempts import AttemptCheck
from trunkline.store.database import Database
from trunkline.telemetry import bind, get_logger, metrics
from trunkline.telephony.carrier import CallView, ListUnavailable, NoSuchCall
from trunkline.telephony.carrier_registry import CarrierConfigError
from trunkline.telephony.directory import AccountName, CarrierDirectory
from trunkline.telephony.queueing import cancel_if_queued
from trunkline.value import replace

log = get_logger(__name__)

BATCH = 100
# A carrier that is down makes every query wait for its time-outs: 100 checks of three requests at 10 s, 20 at once, end
# within 150 s. No other process claims them in that time.
LEASE_S = 180.0
CONCURRENCY = 20
# After this the other accounts are checked, and the slow one finishes beside them.
ROUND_TIMEOUT_S = 5.0
# The carrier's clock and ours differ, and its times are whole seconds.
CLOCK_SLACK = timedelta(seconds=60)


class Checker(Loop):
    name = "checker"

    def __init__(
        self,
        database: Database,
        bus: Bus,
        clock: Clock,
        carriers: CarrierDirectory,
        inbox: Inbox,
        limits: CheckLimits,
        settler: Settler,
        interval_s: float = 2.0,
    ):
        super().__init__(interval_s)
        self._database = database
        self._bus = bus
        self._clock = clock
        self._carriers = carriers
        self._inbox = inbox
        self._limits = limits
        self._settler = settler
        self._running: dict[AccountName, asyncio.Task[None]] = {}

    async def run_once(self) -> int:
        """Check the attempts that are due. Returns how many. One slow account delays no other."""
        async with self._database.connection() as conn:
            due = await attempts.claim_checks(conn, limit=BATCH, lease_s=LEASE_S, not_of=self._running)
        for account, checks in _by_account(due).items():
            self._running[account] = asyncio.create_task(self._check_all(checks), name="checker.looks")
        if self._running:
            await asyncio.wait(self._running.values(), timeout=ROUND_TIMEOUT_S)
        self._collect()
        return len(due)

    async def drain(self) -> None:
        """Until no carrier is being queried any more."""
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    def _collect(self) -> None:
        over = [account for account, task in self._running.items() if task.done()]
        for task in [self._running.pop(account) for account in over]:
            task.result()

    async def _check_all(self, checks: Sequence[AttemptCheck]) -> None:
        semaphore = asyncio.Semaphore(CONCURRENCY)
        results = await asyncio.gather(
            *(self._check_in_turn(check, semaphore) for check in checks), return_exceptions=True
        )
        for failed in results:
            if isinstance(failed, BaseException):
                raise failed  # all others have been checked; this one is checked again when its lease expires

    async def _check_in_turn(self, check: AttemptCheck, semaphore: asyncio.Semaphore) -> None:
        async with semaphore:
            with bind(attempt_id=check.id, lead_id=check.lead_id):
                await self._check(check)

    async def _check(self, check: AttemptCheck) -> None:
        match next_step(check.state, check.age_s, check.doubt_checks, self._limits, self._list_lag_s(check)):
            case Wait(seconds=seconds):
                await self._reschedule(check, seconds)
            case MarkInDoubt():
                await self._doubt(check)
            case QueryList(final=final):
                await self._search_list(check, final)
            case QueryCall():
                await self._look_up_call(check)
            case FreeChannel():
                await self._free_channel(check)

    def _list_lag_s(self, check: AttemptCheck) -> float:
        try:
            return self._carriers.get(check.carrier, check.account).limits.list_lag_s
        except CarrierConfigError:
            return 0.0  # its list cannot be read at all, so nothing is concluded from it

    async def _reschedule(self, check: AttemptCheck, seconds: float, *, doubted: bool = False) -> None:
        async with self._database.connection() as conn:
            await attempts.check_later(conn, {check.id: seconds}, doubted=doubted)

    async def _doubt(self, check: AttemptCheck) -> None:
        async with self._database.connection() as conn:
            if await attempts.mark_in_doubt(conn, [check.id]):
                log.error("attempt.in_doubt", reason="no_reply")

    async def _search_list(self, check: AttemptCheck, final: bool) -> None:
        candidates = await self._candidates(check)
        match candidates:
            case [call]:
                log.warning("attempt.found", call_id=call.call_id)
                await self._append(check, call)
            case [] if final:
                await self._write_off(check, AttemptState.ABSENT, "not_in_call_list")
            case _ if final:
                reason = "call_list_unavailable" if candidates is None else "two_candidates"
                await self._write_off(check, AttemptState.UNKNOWN, reason)
            case _:
                await self._reschedule(check, 0.0, doubted=True)

    async def _candidates(self, check: AttemptCheck) -> list[CallView] | None:
        """Calls of this pair of numbers that no attempt has claimed; None if the list could not be read to its end."""
        try:
            carrier = self._carriers.get(check.carrier, check.account)
        except CarrierConfigError:
            return None
        listed = await carrier.list_calls(check.to_phone, check.from_phone, check.intent_at - CLOCK_SLACK)
        if isinstance(listed, ListUnavailable):
            log.warning("attempt.list_unavailable", reason=listed.reason)
            return None
        async with self._database.connection() as conn:
            known = await attempts.known_call_ids(conn, check.carrier, [call.call_id for call in listed])
        return _ours(check, [call for call in listed if call.call_id not in known])

    async def _look_up_call(self, check: AttemptCheck) -> None:
        """A call without an end webhook is closed only after a query to the carrier."""
        if check.carrier_call_id is None:
            await self._search_list(check, final=False)
            return
        try:
            carrier = self._carriers.get(check.carrier, check.account)
        except CarrierConfigError:
            await self._reschedule(check, RETRY_S)
            return
        may_be_queued = check.is_closed and carrier.limits.queues_excess
        if may_be_queued and await cancel_if_queued(carrier, check.carrier_call_id):
            await self._reschedule(check, RETRY_S)
            return
        view = await carrier.look_up(check.carrier_call_id)
        match view:
            case CallView():
                # Some carriers list an ended call under another id than the one they returned at first.
                await self._append(check, replace(view, call_id=check.carrier_call_id))
                await self._reschedule(
                    check, RETRY_S if view.state == "ended" else self._limits.ring_timeout_s
                )
            case NoSuchCall():
                gone = CallView(
                    check.carrier_call_id, check.to_phone, check.from_phone, "", "ended", reason="failed"
                )
                await self._append(check, gone)
                await self._reschedule(check, RETRY_S)
            case _:
                await self._reschedule(check, RETRY_S)

    async def _append(self, check: AttemptCheck, call: CallView) -> None:
        """Append the carrier's view to the call's mailbox. An end, or a call in doubt, counts as a fix."""
        if call.state == "ended" or check.state is AttemptState.IN_DOUBT:
            metrics.RECONCILER_FIXES.labels(self.name).inc()
        if call.state == "ended" and check.state is not AttemptState.IN_DOUBT:
            # Where one webhook was lost, others probably were.
            async with self._database.connection() as conn:
                await live_calls.check_soon(conn, check.carrier, check.account)
        await queried_calls.append(self._inbox, check.id, call, self._clock.now())

    async def _write_off(self, check: AttemptCheck, state: AttemptState, reason: str) -> None:
        log.error("attempt.written_off", state=state.value, reason=reason)
        async with self._database.transaction() as tx:
            locked = await attempts.lock(tx, [check.id])
            if not await attempts.write_off(tx, check.id, state, reason, self._limits.call_max_s):
                return
            account = (check.carrier, check.account)
            taken_at = (await cooldowns.taken_at(tx, [account])).get(account)
            others_were_accepted = taken_at is not None and taken_at > check.intent_at
            known = (await unexplained.history(tx, locked))[check.id]
            decide = partial(
                _decide, state, reason, others_were_accepted=others_were_accepted, times=known.times
            )
            settlement = await self._settler.settle(tx, locked, {check.id: decide})
            if state is AttemptState.ABSENT and not others_were_accepted:
                await unexplained.report(tx, account, reason, check.lead_id, known)
        metrics.ATTEMPTS_WRITTEN_OFF.labels(check.carrier, state.value).inc()
        if state is AttemptState.UNKNOWN:
            settlement.freed.clear()  # its channel is held until no call can be live on it
        await settlement.publish(self._bus)

    async def resolve_unknown(self, attempt_id: UUID) -> Resolution:
        """Query the carrier once more about an `unknown` attempt, for a person who wants to call its lead again. A call
        that the carrier has goes to the call's mailbox; if it has none, the channel is freed."""
        async with self._database.connection() as conn:
            check = await attempts.unknown(conn, attempt_id)
        if check is None:
            return "settled"
        match await self._candidates(check):
            case [call]:
                await self._append(check, call)
                return "found"
            case []:
                return await self._settle_absent(check)
            case _:
                return "unknown"

    async def _settle_absent(self, check: AttemptCheck) -> Resolution:
        async with self._database.transaction() as tx:
            await attempts.lock(tx, [check.id])
            is_absent = await attempts.mark_absent(tx, check.id)
        if is_absent:
            log.warning("attempt.absent_when_queried_again", attempt_id=str(check.id))
            await Settlement(freed=[check.id]).publish(self._bus)
        return "settled"

    async def _free_channel(self, check: AttemptCheck) -> None:
        async with self._database.transaction() as tx:
            freed = await attempts.free_channel(tx, check.id)
        if freed:
            await Settlement(freed=[check.id]).publish(self._bus)


def _by_account(due: Sequence[AttemptCheck]) -> dict[AccountName, list[AttemptCheck]]:
    groups: dict[AccountName, list[AttemptCheck]] = defaultdict(list)
    for check in due:
        groups[check.carrier, check.account].append(check)
    return groups


def _ours(check: AttemptCheck, unclaimed: Sequence[CallView]) -> list[CallView]:
    """A call with our tag is ours alone, and one with another tag is not. Most carriers keep no tag."""
    tagged = [call for call in unclaimed if call.attempt_id == check.id]
    return tagged or [call for call in unclaimed if call.attempt_id is None]


def _decide(
    state: AttemptState,
    reason: str,
    attempt: attempts.Attempt,
    retries: Retries,
    *,
    others_were_accepted: bool,
    times: int,
) -> LeadDecision:
    """A call that was never placed counts against its lead only if the account accepted others after it."""
    if state is AttemptState.UNKNOWN:
        return Finish(Outcome.UNKNOWN, reason)
    return settle_decision.after_unexplained(
        reason, attempt.budget, retries, others_were_accepted=others_were_accepted, times=times
    )
