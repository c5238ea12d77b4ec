"""The in-doubt checker: finds attempts without recent events, and queries the carrier about them.

Every attempt that holds a channel is checked from time to time, whatever happened to the process that made it. Nothing
is closed by time alone: the checker queries the carrier first (`next_step`). The carrier's call list resolves in-doubt
attempts. The checker reads it at 5 s, 30 s, 2 min and 10 min; only a list that was read to its end and lacks the call
past the horizon makes it `absent`.

The checker appends what it learns to the call's mailbox, as if the carrier had sent it: facts are folded in one way
only. `absent` and `unknown` are our own conclusions, and are settled here.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Literal
from uuid import UUID

from trunkline.clock import Clock
from trunkline.dispatch.carrier_responses import UnexplainedRefusal, history
from trunkline.dispatch.live_calls import append, looked_up
from trunkline.dispatch.settlement import Decide, Settlement, Settler
from trunkline.leads.retries import Retries
from trunkline.loops.base import Loop
from trunkline.mailbox.inbox import Inbox
from trunkline.model import Finish, LeadDecision, Outcome
from trunkline.states import AttemptState
from trunkline.store import attempts, cooldowns, live_calls
from trunkline.store.attempts import Attempt, AttemptCheck
from trunkline.store.database import Database
from trunkline.telemetry import bind, get_logger, metrics
from trunkline.telephony.carrier import CallView, Carrier, Unavailable
from trunkline.telephony.directory import AccountName, CarrierDirectory

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
# Seconds after the send at which the call list is read. The last is the horizon: it must be later than the request's
# deadline, the ring time and the list's own lag together.
DOUBT_STEPS_S = (5.0, 30.0, 120.0, 600.0)
# How often an answered call without further events is looked up.
ANSWERED_EVERY_S = 60.0
# Allowance for the carrier's own delays beyond the ring time-out.
RING_GRACE_S = 30.0
RETRY_S = 30.0

# The result of one more query about an `unknown` attempt: the carrier has the call; it has no such call, or the attempt
# was settled otherwise; the carrier cannot tell.
Resolution = Literal["found", "settled", "unknown"]


@dataclass(frozen=True, slots=True)
class CheckLimits:
    request_timeout_s: float
    ring_timeout_s: float
    time_limit_s: float

    @property
    def reply_deadline_s(self) -> float:
        """Past this no dialer waits for the reply any more, or has one left to write."""
        return self.request_timeout_s + 10.0

    @property
    def ring_over_s(self) -> float:
        """Past this nothing rings any more, whenever the carrier began."""
        return self.reply_deadline_s + self.ring_timeout_s

    @property
    def call_max_s(self) -> float:
        """No call lasts longer than this after its request."""
        return self.ring_timeout_s + self.time_limit_s + RING_GRACE_S


class Checker(Loop):
    name = "checker"

    def __init__(
        self,
        database: Database,
        clock: Clock,
        carriers: CarrierDirectory,
        inbox: Inbox,
        limits: CheckLimits,
        settler: Settler,
    ):
        super().__init__(interval_s=2.0)
        self._database = database
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
        by_account: dict[AccountName, list[AttemptCheck]] = defaultdict(list)
        for check in due:
            by_account[check.carrier, check.account].append(check)
        for account, checks in by_account.items():
            self._running[account] = asyncio.create_task(self._check_all(checks), name="checker.looks")
        if self._running:
            await asyncio.wait(self._running.values(), timeout=ROUND_TIMEOUT_S)
        over = [account for account, task in self._running.items() if task.done()]
        for task in [self._running.pop(account) for account in over]:
            task.result()
        return len(due)

    async def drain(self) -> None:
        """Until no carrier is being queried any more."""
        await asyncio.gather(*self._running.values(), return_exceptions=True)

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
        # 0 for an account whose list cannot be read at all: nothing is concluded from it.
        carrier = self._carriers.find(check.carrier, check.account)
        list_lag_s = carrier.limits.list_lag_s if carrier else 0.0
        match next_step(check.state, check.age_s, check.doubt_checks, self._limits, list_lag_s):
            case Wait(seconds=seconds):
                await self._reschedule(check, seconds)
            case "mark_in_doubt":
                async with self._database.connection() as conn:
                    if await attempts.mark_in_doubt(conn, [check.id]):
                        log.error("attempt.in_doubt", reason="no_reply")
            case QueryList(final=final):
                await self._search_list(check, final)
            case "query_call":
                await self._look_up_call(check)
            case "free_channel":
                async with self._database.transaction() as tx:
                    freed = await attempts.free_channel(tx, check.id)
                if freed:
                    await self._settler.publish(Settlement(freed=[check.id]))

    async def _reschedule(self, check: AttemptCheck, seconds: float, *, doubted: bool = False) -> None:
        async with self._database.connection() as conn:
            await attempts.check_later(conn, {check.id: seconds}, doubted=doubted)

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
        carrier = self._carriers.find(check.carrier, check.account)
        if carrier is None:
            return None
        listed = await carrier.list_calls(check.to_phone, check.from_phone, check.intent_at - CLOCK_SLACK)
        if isinstance(listed, Unavailable):
            log.warning("attempt.list_unavailable", reason=listed.reason)
            return None
        async with self._database.connection() as conn:
            known = await attempts.known_call_ids(conn, check.carrier, [call.call_id for call in listed])
        unclaimed = [call for call in listed if call.call_id not in known]
        # A call with our tag is ours alone, and one with another tag is not. Most carriers keep no tag.
        tagged = [call for call in unclaimed if call.attempt_id == check.id]
        return tagged or [call for call in unclaimed if call.attempt_id is None]

    async def _look_up_call(self, check: AttemptCheck) -> None:
        """A call without an end webhook is closed only after a query to the carrier."""
        if check.carrier_call_id is None:
            await self._search_list(check, final=False)
            return
        carrier = self._carriers.find(check.carrier, check.account)
        if carrier is None:
            await self._reschedule(check, RETRY_S)
            return
        may_be_queued = check.is_closed and carrier.limits.queues_excess
        if may_be_queued and await cancel_if_queued(carrier, check.carrier_call_id):
            await self._reschedule(check, RETRY_S)
            return
        view = looked_up(check, check.carrier_call_id, await carrier.look_up(check.carrier_call_id))
        if view is not None:
            await self._append(check, view)
        is_live = view is not None and view.state != "ended"
        await self._reschedule(check, self._limits.ring_timeout_s if is_live else RETRY_S)

    async def _append(self, check: AttemptCheck, call: CallView) -> None:
        """Append the carrier's view to the call's mailbox. An end, or a call in doubt, counts as a fix."""
        if call.state == "ended" or check.state is AttemptState.IN_DOUBT:
            metrics.RECONCILER_FIXES.labels(self.name).inc()
        if call.state == "ended" and check.state is not AttemptState.IN_DOUBT:
            # Where one webhook was lost, others probably were.
            async with self._database.connection() as conn:
                await live_calls.check_soon(conn, check.carrier, check.account)
        await append(self._inbox, check.id, call, self._clock.now())

    async def _write_off(self, check: AttemptCheck, state: AttemptState, reason: str) -> None:
        log.error("attempt.written_off", state=state.value, reason=reason)
        async with self._database.transaction() as tx:
            locked = await attempts.lock(tx, [check.id])
            if not await attempts.write_off(tx, check.id, state, reason, self._limits.call_max_s):
                return
            account = (check.carrier, check.account)
            taken_at = (await cooldowns.taken_at(tx, [account])).get(account)
            # A call that was never placed counts against its lead only if the account accepted others after it.
            others_were_accepted = taken_at is not None and taken_at > check.intent_at
            times = (await history(tx, list(locked.values())))[check.id].times
            absent = UnexplainedRefusal(account, reason, check.lead_id, times, others_were_accepted)
            is_absent = state is AttemptState.ABSENT
            decide: Decide = absent if is_absent else partial(_unknown, reason)
            settlement = await self._settler.settle(tx, locked, {check.id: decide})
            if is_absent:
                await absent.report(tx)
        metrics.ATTEMPTS_WRITTEN_OFF.labels(check.carrier, state.value).inc()
        if state is AttemptState.UNKNOWN:
            settlement.freed.clear()  # its channel is held until no call can be live on it
        await self._settler.publish(settlement)

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
                async with self._database.transaction() as tx:
                    await attempts.lock(tx, [check.id])
                    is_absent = await attempts.mark_absent(tx, check.id)
                if is_absent:
                    log.warning("attempt.absent_when_queried_again", attempt_id=str(check.id))
                    await self._settler.publish(Settlement(freed=[check.id]))
                return "settled"
            case _:
                return "unknown"


async def cancel_if_queued(carrier: Carrier, call_id: str) -> bool:
    """Its window has closed. Whether the call was still queued at the carrier, and its cancellation was requested; the
    end webhook reports the result. One that rings or was answered goes on."""
    seen = await carrier.look_up(call_id)
    if not isinstance(seen, CallView) or seen.state != "queued":
        return False
    await carrier.hang_up(call_id, only_unanswered=True)
    log.warning("call.window_closed_in_queue", carrier=carrier.name)
    return True


def _unknown(reason: str, attempt: Attempt, retries: Retries) -> LeadDecision:
    return Finish(Outcome.UNKNOWN, reason)


@dataclass(frozen=True, slots=True)
class Wait:
    seconds: float


@dataclass(frozen=True, slots=True)
class QueryList:
    """Was it dialled? `final`: this is the last query."""

    final: bool


# The reply never came; is the call still live?; no call can be live on this channel any more.
Step = Wait | QueryList | Literal["mark_in_doubt", "query_call", "free_channel"]


def next_step(
    state: AttemptState, age_s: float, doubt_checks: int, limits: CheckLimits, list_lag_s: float = 0.0
) -> Step:
    match state:
        case AttemptState.DIALING:
            left_s = limits.reply_deadline_s - age_s
            return Wait(left_s) if left_s > 0 else "mark_in_doubt"
        case AttemptState.IN_DOUBT:
            return _doubt_step(age_s, doubt_checks, limits.ring_over_s + list_lag_s)
        case AttemptState.ACCEPTED | AttemptState.RINGING:
            left_s = limits.ring_timeout_s + RING_GRACE_S - age_s
            return Wait(left_s) if left_s > 0 else "query_call"
        case AttemptState.ANSWERED:
            return "query_call" if age_s >= ANSWERED_EVERY_S else Wait(ANSWERED_EVERY_S - age_s)
        case _:
            return "free_channel"


def _doubt_step(age_s: float, doubt_checks: int, horizon_s: float) -> Step:
    step = min(doubt_checks, len(DOUBT_STEPS_S) - 1)
    final = step == len(DOUBT_STEPS_S) - 1
    due_s = max(DOUBT_STEPS_S[step], horizon_s if final else 0.0)
    return QueryList(final) if age_s >= due_s else Wait(due_s - age_s)
