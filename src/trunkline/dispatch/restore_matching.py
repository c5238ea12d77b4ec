"""Finds the leads that were called by calls which a restored database does not have. Pure.

A carrier's list has the called phone, the number and the time of a call; it does not name the lead. A lead counts as
called if it waits for that phone, may use that number, and was due by then; so does one that came in after the restore,
because a sender that repeats lost leads sends them again. Where there are more such leads than calls, the calls belong
to those that were due first, and the others are in doubt: they may have been called, so no dialer calls them again.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from trunkline.store.restores import OurNumber, WaitingLead
from trunkline.telephony.carrier import CallView
from trunkline.value import Value

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


def match(
    calls: Sequence[LostCall],
    leads: Sequence[WaitingLead],
    overflows: Mapping[str, str | None],
    found_at: datetime,
) -> Matching:
    """`leads` are those that wait for the phones of these calls, in the order in which they were due."""
    by_phone: dict[str, list[WaitingLead]] = defaultdict(list)
    for lead in leads:
        by_phone[lead.phone].append(lead)
    result = Matching([], [], [], [])
    for phone, phone_calls in _by_phone(calls).items():
        _match_phone(phone_calls, by_phone[phone], overflows, found_at, result)
    return result


def _by_phone(calls: Sequence[LostCall]) -> dict[str, list[LostCall]]:
    groups: dict[str, list[LostCall]] = defaultdict(list)
    for call in sorted(calls, key=_call_time):
        groups[call.call.to].append(call)
    return groups


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
    if lost.number is not None and lost.number.pool_id not in _reachable_pools(lead.pool_id, overflows):
        return False
    return lead.created_at >= found_at or lost.at is None or lead.due_at <= lost.at + CLOCK_SLACK


def _reachable_pools(pool_id: str, overflows: Mapping[str, str | None]) -> set[str]:
    reached: set[str] = set()
    following: str | None = pool_id
    while following is not None and following not in reached:
        reached.add(following)
        following = overflows.get(following)
    return reached


def _call_time(lost: LostCall) -> tuple[bool, float, str]:
    return lost.at is None, lost.at.timestamp() if lost.at else 0.0, lost.call.call_id
