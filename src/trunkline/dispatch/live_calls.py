"""Compares live calls with the carriers' lists: an end whose webhook was lost frees its channel within a minute.

Every 30 s the loop reads each account's list of live calls, by pages, and looks up a call that the list lacks by its
id, because absence from a list proves nothing. Requests per account are bounded, so that they take nothing from
dialling: calls that do not fit come first at the next turn. The loop reads every account at once after a time in which
no webhook could be received (`WebhookReception`), and one account when a check finds an unreported end, or when calls
that should ring have no events.

Beside it the checker checks single attempts: those in doubt, and those that this loop did not reach.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from msgspec.structs import asdict

from trunkline.clock import Clock
from trunkline.dispatch.calls import KIND, URGENT
from trunkline.loops.base import Loop
from trunkline.mailbox.inbox import Inbox
from trunkline.states import AttemptState
from trunkline.store import live_calls
from trunkline.store.attempts import AttemptCheck
from trunkline.store.database import Database
from trunkline.store.live_calls import LiveCall
from trunkline.store.mailboxes import NewEvent
from trunkline.telemetry import bind, get_logger, metrics
from trunkline.telephony.carrier import (
    CallState,
    CallView,
    Carrier,
    ListPages,
    LookUpResult,
    NoSuchCall,
    Unavailable,
)
from trunkline.telephony.carrier_registry import SILENT_WHILE_RINGING
from trunkline.telephony.directory import AccountName, CarrierDirectory
from trunkline.value import replace

log = get_logger(__name__)

# 50 % of the minute within which a channel is free again: the other 50 % are for the request, the fold and a list's
# lag.
EVERY_S = 30.0
LEASE_S = 180.0
# After this the other accounts are read, and the slow one finishes beside them.
ROUND_TIMEOUT_S = 5.0
# Up to this many calls are looked up one by one: that takes no more requests than the list.
LOOKUPS_INSTEAD_MAX = 5
CONCURRENCY = 10
# Lists that cannot be filtered by live calls are read from here on; older calls are looked up.
LISTED_SINCE = timedelta(minutes=15)
CLOCK_SLACK = timedelta(seconds=60)
# How long the checker leaves out a call that this loop has seen.
QUIET_S = 90.0
# The webhook of an end that is older than this, and new to us, was lost.
WEBHOOK_WITHIN = timedelta(seconds=10)
GAP_S = 5.0
_KINDS = {"queued": "initiated", "ringing": "ringing", "answered": "answered", "ended": "ended"}
_ORDER: tuple[CallState, ...] = ("queued", "ringing", "answered", "ended")
_KNOWN = {
    AttemptState.ACCEPTED: 0,
    AttemptState.RINGING: 1,
    AttemptState.ANSWERED: 2,
    AttemptState.ENDED: 3,
}


class LiveCalls(Loop):
    name = "live_calls"

    def __init__(self, database: Database, clock: Clock, carriers: CarrierDirectory, inbox: Inbox):
        super().__init__(interval_s=2.0)
        self._database = database
        self._clock = clock
        self._carriers = carriers
        self._inbox = inbox
        self._running: set[asyncio.Task[None]] = set()

    async def run_once(self) -> int:
        """Returns how many accounts were due."""
        async with self._database.connection() as conn:
            accounts = await live_calls.claim(
                conn, lease_s=LEASE_S, every_s=EVERY_S, silent_while_ringing=SILENT_WHILE_RINGING
            )
            ages_s = await live_calls.oldest(conn)
        metrics.set_exactly(metrics.OLDEST_LOOK_SECONDS, ages_s)
        for account in accounts:
            self._running.add(asyncio.create_task(self._read_account(account), name="live_calls.account"))
        if self._running:
            await asyncio.wait(self._running, timeout=ROUND_TIMEOUT_S)
        over = {task for task in self._running if task.done()}
        self._running -= over
        for task in over:
            task.result()
        return len(accounts)

    async def drain(self) -> None:
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _read_account(self, account: AccountName) -> None:
        async with self._database.connection() as conn:
            calls = await live_calls.calls(conn, *account)
        carrier = self._carriers.find(*account)
        if carrier is None:
            return  # the lease expires
        reading = _AccountReading(carrier)
        seen: dict[LiveCall, CallView] = {}
        async for call, view in reading.views(calls):
            await self._append(call, view)
            seen[call] = view
        under_way = {call.id: view.state in ("ringing", "answered") for call, view in seen.items()}
        async with self._database.connection() as conn:
            await live_calls.note_checked(conn, under_way, quiet_s=QUIET_S)
            await live_calls.done(conn, *account, next_in_s=reading.next_in_s)

    async def _append(self, call: LiveCall, view: CallView) -> None:
        if not is_progress(call.state, view):
            return
        now = self._clock.now()
        with bind(attempt_id=call.id, lead_id=call.lead_id):
            if view.state == "ended" and (view.ended_at is None or now - view.ended_at > WEBHOOK_WITHIN):
                log.warning("webhook.lost", call_id=view.call_id)
                metrics.WEBHOOKS_LOST.inc()
                metrics.RECONCILER_FIXES.labels(self.name).inc()
            await append(self._inbox, call.id, view, now)


class _AccountReading:
    """Reads the calls of an account, with as many requests as the account allows."""

    def __init__(self, carrier: Carrier):
        self._carrier = carrier
        self._requests = 0
        self._requests_max = max(1, int(carrier.limits.looks_per_min * EVERY_S / 60))

    @property
    def next_in_s(self) -> float:
        """Later, if this run took more requests than the account has in that time: a page cannot be left half read."""
        return max(EVERY_S, self._requests * 60 / self._carrier.limits.looks_per_min)

    async def views(self, calls: Sequence[LiveCall]) -> AsyncIterator[tuple[LiveCall, CallView]]:
        """The carrier's view of the calls. Some may be missing: they come first the next time."""
        shown: dict[str, CallView] = {}
        lists, carrier = self._carrier.limits.lists, self._carrier
        if len(calls) > LOOKUPS_INSTEAD_MAX and lists != "none":
            await self._read(carrier.live_calls(_since(calls)), calls, shown)
        missing = _missing(calls, shown)
        if len(missing) > LOOKUPS_INSTEAD_MAX and lists == "live":
            # Many have ended unreported: one page shows a thousand of them.
            await self._read(carrier.account_calls(_since(missing)), missing, shown)
            missing = _missing(calls, shown)
        for call in calls:
            if view := shown.get(call.carrier_call_id):
                yield call, view
        semaphore = asyncio.Semaphore(CONCURRENCY)
        lookups_left = max(1, self._requests_max - self._requests)
        for lookup in asyncio.as_completed(
            [self._look_up(call, semaphore) for call in missing[:lookups_left]]
        ):
            call, found_view = await lookup
            if found_view is not None:
                yield call, found_view

    async def _read(self, pages: ListPages, wanted: Sequence[LiveCall], shown: dict[str, CallView]) -> None:
        """Until all that are wanted are shown. A later page is newer."""
        async for page in pages:
            self._requests += 1
            if isinstance(page, Unavailable):
                log.warning("live_calls.list_unavailable", carrier=self._carrier.name, reason=page.reason)
                return  # the pages so far are valid all the same
            shown |= {view.call_id: view for view in page}
            if not _missing(wanted, shown):
                return

    async def _look_up(
        self, call: LiveCall, semaphore: asyncio.Semaphore
    ) -> tuple[LiveCall, CallView | None]:
        async with semaphore:
            self._requests += 1
            found = await self._carrier.look_up(call.carrier_call_id)
        is_too_new = isinstance(found, NoSuchCall) and call.age_s <= self._carrier.limits.list_lag_s
        return call, None if is_too_new else looked_up(call, call.carrier_call_id, found)


def _since(calls: Sequence[LiveCall]) -> datetime:
    sent_at = [call.send_at for call in calls]
    return max(min(sent_at), max(sent_at) - LISTED_SINCE) - CLOCK_SLACK


def _missing(calls: Sequence[LiveCall], shown: Mapping[str, CallView]) -> list[LiveCall]:
    return [call for call in calls if call.carrier_call_id not in shown]


def is_progress(known: AttemptState, call: CallView) -> bool:
    """Whether the carrier's state of the call is later than ours."""
    return _ORDER.index(call.state) > _KNOWN.get(known, -1)


def event_of(attempt_id: UUID, call: CallView, at: datetime | None) -> NewEvent:
    """A carrier's reply to a query, for the call's mailbox, as if the carrier had sent it: facts are folded in one way
    only."""
    kind = _KINDS[call.state]
    return NewEvent(
        kind=KIND,
        key=str(attempt_id),
        dedupe_key=f"asked:{call.call_id}:{call.state}",
        type=kind,
        payload={
            "kind": kind,
            "call_id": call.call_id,
            "at": at.isoformat() if at else None,
            "reason": call.reason,
            "fault": call.fault,
            "duration_s": call.duration_s,
            "raw": {"status": call.status, "asked": "true"},
            **({"cost": asdict(call.cost)} if call.cost else {}),
        },
        urgent=kind in URGENT,
    )


async def append(inbox: Inbox, attempt_id: UUID, call: CallView, now: datetime) -> None:
    await inbox.append(event_of(attempt_id, call, call.ended_at or call.started_at or now))


def looked_up(call: LiveCall | AttemptCheck, call_id: str, found: LookUpResult) -> CallView | None:
    """The carrier's view of a call that was looked up by its id; None: the carrier cannot tell."""
    match found:
        case CallView():
            # Some carriers list an ended call under another id than the one they returned at first.
            return replace(found, call_id=call_id)
        case NoSuchCall():
            return CallView(call_id, call.to_phone, call.from_phone, "", "ended", reason="failed")
        case _:
            return None


class WebhookReception(Loop):
    """Records, in every process that receives webhooks, that it can. After a gap all accounts are read."""

    name = "webhook_hearing"

    def __init__(self, database: Database):
        super().__init__(interval_s=1.0)
        self._database = database

    async def run_once(self) -> int:
        async with self._database.connection() as conn:
            accounts = await live_calls.note_receiving(conn, gap_s=GAP_S)
        if accounts:
            log.warning("webhook.gap", accounts=accounts)
        return accounts
