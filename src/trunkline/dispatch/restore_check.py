"""After a restore of Postgres: finds the calls that it lost and the leads that would be called again, and settles them.

    read every account's list ─► calls without an attempt ─► the leads they called ─► attempts ─► settled

A lost call becomes an attempt of its lead again. From then on everything is as usual: the fold or the checker decides
by what the carrier reports, and the lead has no second call meanwhile. A lead that may or may not have been called ends
as UNKNOWN, which is never called again automatically. All this is written while the kill switch is on, and the switch
is not lifted before. Safe to repeat, also after an interruption.
"""

import random
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal, TypeVar
from uuid import NAMESPACE_URL, UUID, uuid5

from trunkline.dispatch.late_facts import SPARE_CHANNELS
from trunkline.dispatch.live_calls import event_of
from trunkline.model import new_id
from trunkline.store import attempts, audit, controls, lead_edits, mailboxes, restores
from trunkline.store.controls import Scope
from trunkline.store.database import Database
from trunkline.store.restores import OurNumber, RestoredCall, WaitingLead
from trunkline.store.tenants import PLATFORM
from trunkline.telemetry import get_logger
from trunkline.telephony.carrier import CallView, Unavailable
from trunkline.telephony.carrier_registry import CarrierConfigError
from trunkline.telephony.directory import AccountName, CarrierDirectory
from trunkline.value import Value, replace

log = get_logger(__name__)

T = TypeVar("T")

ACTOR = "cli:restore-check"
REASON = "RESTORED"
# How many calls are looked up, and leads locked, at a time.
PAGE = 500
_FIRST_ID = UUID(int=0)


# The carrier's clock and ours differ, and its times are whole seconds.
CLOCK_SLACK = timedelta(seconds=60)


class LostCall(Value, frozen=True):
    """A call that the carrier placed for us, without an attempt in this database."""

    carrier: str
    account: str
    call: CallView
    # None: the number it was placed from is not in this database either.
    number: OurNumber | None

    @property
    def at(self) -> datetime | None:
        return self.call.started_at or self.call.created_at


class CalledLead(Value, frozen=True):
    """A lead that would be called again, and its calls in their order."""

    lead: WaitingLead
    calls: tuple[LostCall, ...]


class Matching(Value, frozen=True):
    called: list[CalledLead]
    # A call that was matched to another lead may have been theirs.
    doubtful: list[WaitingLead]
    # Due only later, to people who were called: probably for another lead, which is lost.
    later: list[WaitingLead]
    # Calls for which there is no lead.
    orphans: list[LostCall]

    @property
    def leads(self) -> set[UUID]:
        """All leads that were compared."""
        return {each.lead.id for each in self.called} | {lead.id for lead in (*self.doubtful, *self.later)}

    @property
    def phones(self) -> set[str]:
        """Of all people who were called."""
        assigned = [lost for each in self.called for lost in each.calls]
        return {lost.call.to for lost in (*assigned, *self.orphans)}


class ReadAccount(Value, frozen=True):
    """How many calls the account's list has. `problem`: why it could not be read to its end."""

    carrier: str
    account: str
    calls: int
    problem: str | None = None


class Comparison(Value, frozen=True):
    since: datetime
    found_at: datetime
    accounts: list[ReadAccount]
    matching: Matching
    # Calls from before the restore that are still live or in doubt here.
    live: int
    # Leads that an account whose list could not be read may have called.
    unread: int

    @property
    def unread_accounts(self) -> list[AccountName]:
        return [(read.carrier, read.account) for read in self.accounts if read.problem]


class Settled(Value, frozen=True):
    # Leads that have their calls back, and leads that ended because their calls are not known.
    restored: int
    unknown: int


RestoreRefusal = Literal["kill_switch_off", "calls_live", "lists_unread"]


class RestoreCheck:
    def __init__(self, database: Database, carriers: CarrierDirectory):
        self._database = database
        self._carriers = carriers

    async def compare(self, since: datetime, found_at: datetime) -> Comparison:
        """Reads, and changes nothing."""
        async with self._database.connection() as conn:
            numbers = await restores.numbers(conn)
            overflows = await restores.overflows(conn)
        accounts, lost = await self._read_lists(since, numbers)
        async with self._database.connection() as conn:
            leads = []
            for phones in _pages(sorted({call.call.to for call in lost})):
                leads += await restores.waiting(conn, phones)
            live = await restores.live(conn, found_at)
        matching = match(lost, leads, overflows, found_at)
        comparison = Comparison(since, found_at, accounts, matching, live, unread=0)
        unread = {lead_id async for lead_id in self._unread(comparison)}
        return replace(comparison, unread=len(unread - {called.lead.id for called in matching.called}))

    async def settle(
        self, comparison: Comparison, *, accept_unread: bool = False
    ) -> Settled | RestoreRefusal:
        """`accept_unread`: end the leads that an account may have called whose list could not be read."""
        async with self._database.connection() as conn:
            switches = await controls.get(conn, Scope.KILL_SWITCH, "")
            if not any(switch.phase(switch.seen_at) == "stopped" for switch in switches):
                return "kill_switch_off"
        if comparison.live:
            return "calls_live"
        if comparison.unread_accounts and not accept_unread:
            return "lists_unread"
        restored, unknown = 0, 0
        for called in _pages(comparison.matching.called):
            done = await self._restore_calls(called)
            restored, unknown = restored + done.restored, unknown + done.unknown
        doubtful = [lead.id for lead in comparison.matching.doubtful]
        for page in _pages([*doubtful, *[lead_id async for lead_id in self._unread(comparison)]]):
            async with self._database.transaction() as tx:
                locked = await lead_edits.lock(tx, PLATFORM, sorted(page))
                unknown += len(await restores.end_unknown(tx, sorted(locked), REASON))
        return await self._record(comparison, restored, unknown)

    async def _read_lists(
        self, since: datetime, numbers: dict[str, OurNumber]
    ) -> tuple[list[ReadAccount], list[LostCall]]:
        """Of every account that is configured, or that has a number here."""
        used = {(number.carrier, number.account) for number in numbers.values()}
        accounts: list[ReadAccount] = []
        lost: dict[tuple[str, str, str], LostCall] = {}
        for name in sorted({*used, *self._carriers.names}):
            seen: set[str] = set()
            problem: str | None = None
            try:
                carrier = self._carriers.get(*name)
            except CarrierConfigError as error:
                accounts.append(ReadAccount(*name, 0, str(error)))
                continue
            async for page in carrier.account_calls(since - CLOCK_SLACK):
                if isinstance(page, Unavailable):
                    problem = page.reason
                    break
                dialled = [call for call in page if call.direction == "outbound"]
                seen.update(call.call_id for call in dialled)
                calls = [LostCall(*name, call, numbers.get(call.from_)) for call in dialled]
                lost |= {(*name, each.call.call_id): each for each in await self._unknown(name[0], calls)}
            accounts.append(ReadAccount(*name, len(seen), problem))
        return accounts, list(lost.values())

    async def _unknown(self, carrier: str, calls: Sequence[LostCall]) -> list[LostCall]:
        """Those without an attempt, and without one that is still being resolved."""
        async with self._database.connection() as conn:
            known = await attempts.known_call_ids(conn, carrier, [each.call.call_id for each in calls])
            new = [each for each in calls if each.call.call_id not in known]
            dated = [(each, each.at) for each in new]
            pairs = [(each.call.to, each.call.from_, at) for each, at in dated if at is not None]
            places = await restores.unresolved(conn, pairs)
        resolved = {pairs[place] for place in places}
        return [
            each for each, at in dated if at is None or (each.call.to, each.call.from_, at) not in resolved
        ]

    async def _unread(self, comparison: Comparison) -> AsyncIterator[UUID]:
        after = _FIRST_ID
        while comparison.unread_accounts:
            async with self._database.connection() as conn:
                page = await restores.unread(
                    conn, comparison.unread_accounts, comparison.found_at, after=after, limit=PAGE
                )
            for lead_id in page:
                yield lead_id
            if len(page) < PAGE:
                return
            after = page[-1]

    async def _restore_calls(self, called: Sequence[CalledLead]) -> Settled:
        """One transaction. What an index refuses (two leads, one person, one number) ends as unknown."""
        calls = [call for each in called for call in _restored_calls(each)]
        ids = sorted(each.lead.id for each in called)
        last = {each.lead.id: each.calls[-1] for each in called}
        async with self._database.transaction() as tx:
            locked = await lead_edits.lock(tx, PLATFORM, ids)
            # The first of so many channel numbers that no number has: it only keeps two calls of a number apart.
            spare = random.randrange(SPARE_CHANNELS.start, SPARE_CHANNELS.stop - len(calls) - 1)  # noqa: S311  no secret
            taken = await restores.restore(tx, calls, ACTOR, spare)
            refused = sorted(locked.keys() - taken.keys())
            unknown = await restores.end_unknown(tx, refused, REASON)
            ends = []
            for lead_id, attempt_id in taken.items():
                lost = last[lead_id]
                if lost.call.state == "ended":
                    # Whose fault the end was, and its cost, are not known from here on.
                    call = replace(lost.call, fault=None, cost=None)
                    ends.append(event_of(attempt_id, call, call.ended_at or lost.at))
            if ends:
                await mailboxes.append(tx, ends)
        return Settled(len(taken), len(unknown))

    async def _record(self, comparison: Comparison, restored: int, unknown: int) -> Settled:
        """From here on `reminders` makes no lead for an earlier due time. Those that it made after the comparison end
        here: whether they were called is unknown too."""
        async with self._database.transaction() as tx:
            if not await restores.settle(tx, comparison.found_at, ACTOR):
                await restores.note_settled(tx, comparison.since, comparison.found_at, REASON, ACTOR)
            made = await restores.made_meanwhile(
                tx, comparison.found_at, comparison.matching.phones, comparison.matching.leads
            )
            if made:
                locked = await lead_edits.lock(tx, PLATFORM, made)
                unknown += len(await restores.end_unknown(tx, sorted(locked), REASON))
            details = {
                "since": comparison.since.isoformat(),
                "restored": restored,
                "unknown": unknown,
                "orphans": len(comparison.matching.orphans),
                "unread": ["/".join(name) for name in comparison.unread_accounts],
            }
            await audit.record(
                tx, actor=ACTOR, action="restore.settled", subject="", tenant=PLATFORM, details=details
            )
        log.info("restore.settled", restored=restored, unknown=unknown)
        return Settled(restored, unknown)


def _pages(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for first in range(0, len(items), PAGE):
        yield items[first : first + PAGE]


def _restored_calls(called: CalledLead) -> Iterator[RestoredCall]:
    for lost in called.calls:
        call, is_last = lost.call, lost is called.calls[-1]
        began_at = lost.at or called.lead.due_at
        talked = call.reason == "completed" and call.duration_s != 0
        ended_at = call.ended_at or began_at + timedelta(seconds=call.duration_s or 0)
        yield RestoredCall(
            id=call.attempt_id or new_id(),
            lead_id=called.lead.id,
            is_last=is_last,
            carrier=lost.carrier,
            account=lost.account,
            call_id=call.call_id,
            number_id=lost.number.id if lost.number else uuid5(NAMESPACE_URL, f"tel:{call.from_}"),
            to_phone=call.to,
            from_phone=call.from_,
            started_at=began_at,
            answered_at=ended_at - timedelta(seconds=call.duration_s or 0) if talked else None,
            ended_at=ended_at,
            end_reason=call.reason,
            duration_s=call.duration_s,
        )


def match(
    calls: Sequence[LostCall],
    leads: Sequence[WaitingLead],
    overflows: Mapping[str, str | None],
    found_at: datetime,
) -> Matching:
    """Finds the leads that were called by calls which a restored database does not have. Pure.

    A carrier's list has the called phone, the number and the time of a call; it does not name the lead. A lead counts
    as called if it waits for that phone, may use that number, and was due by then; so does one that came in after the
    restore, because a sender that repeats lost leads sends them again. Where there are more such leads than calls, the
    calls belong to those that were due first, and the others are in doubt: they may have been called, so no dialer
    calls them again.

    `leads` are those that wait for the phones of these calls, in the order in which they were due."""
    leads_of: dict[str, list[WaitingLead]] = defaultdict(list)
    calls_to: dict[str, list[LostCall]] = defaultdict(list)
    for lead in leads:
        leads_of[lead.phone].append(lead)
    for call in sorted(calls, key=_call_time):
        calls_to[call.call.to].append(call)
    result = Matching([], [], [], [])
    for phone, phone_calls in calls_to.items():
        _match_phone(phone_calls, leads_of[phone], overflows, found_at, result)
    return result


def _match_phone(
    calls: Sequence[LostCall],
    leads: Sequence[WaitingLead],
    overflows: Mapping[str, str | None],
    found_at: datetime,
    result: Matching,
) -> None:
    assigned: dict[int, list[LostCall]] = defaultdict(list)
    possible: set[int] = set()
    for call in calls:
        candidates = [n for n, lead in enumerate(leads) if _may_have_called(call, lead, overflows, found_at)]
        possible.update(candidates)
        if candidates:
            # Each lead gets its first call before any gets its second.
            assigned[min(candidates, key=lambda n: (len(assigned[n]), n))].append(call)
        else:
            result.orphans.append(call)
    for n, lead in enumerate(leads):
        if assigned[n]:
            result.called.append(CalledLead(lead, tuple(assigned[n])))
        elif n in possible:
            result.doubtful.append(lead)
        else:
            result.later.append(lead)


def _may_have_called(
    lost: LostCall, lead: WaitingLead, overflows: Mapping[str, str | None], found_at: datetime
) -> bool:
    if lost.number is not None:
        reached: set[str] = set()
        following: str | None = lead.pool_id
        while following is not None and following not in reached:
            reached.add(following)
            following = overflows.get(following)
        if lost.number.pool_id not in reached:
            return False
    return lead.created_at >= found_at or lost.at is None or lead.due_at <= lost.at + CLOCK_SLACK


def _call_time(lost: LostCall) -> tuple[bool, float, str]:
    return lost.at is None, lost.at.timestamp() if lost.at else 0.0, lost.call.call_id
