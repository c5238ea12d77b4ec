"""Cooldowns: a circuit breaker for what a carrier refuses because of us, as narrow as the refusal.

    refused (credentials, credit, our number, a country)   ─► cooldown, stored in Postgres
      after 20 s one call goes out as a probe              ─► refused: the next one after twice as long, at most 5 min
                                                           ─► accepted: over

Intents name the probe under the account's lock, so there is one at a time over all processes, and each calls another
person if there is one: a lead that no carrier would ever call does not block the others. A refused call costs its lead
nothing. An account that has not accepted a call for an hour begins with a probe too, or a burst would leave before its
first refusal is known.

A process that cannot reach a carrier leaves it out by itself; the others go on. When two report it, and no call was
accepted since, every process leaves the account out.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from trunkline.control.raising import clear_alarm, raise_alarm
from trunkline.leads.fold import FAILED_FOR_US
from trunkline.leads.zones import region_of
from trunkline.model import Blocks, Grant, Refusal, RefusalReason
from trunkline.store import cooldowns
from trunkline.store.cooldowns import (
    AccountName,
    CarrierRefused,
    Cooldown,
    NewProbe,
    Scope,
    Subject,
)
from trunkline.store.database import UNAVAILABLE, Connection, Database
from trunkline.store.dispatch import LimitCounts, LockedLead
from trunkline.telemetry import get_logger, metrics
from trunkline.telephony.carrier import Accepted, Blame, PlaceResult, Rejected, Throttled
from trunkline.telephony.reply_rules import REMEDIES, judge_end
from trunkline.value import Private, Value

log = get_logger(__name__)

FIRST_WAIT_S = 20.0
WAIT_MAX_S = 300.0
# A request without a reply by then gets none.
PROBE_DEADLINE = timedelta(seconds=15)
# Some carriers accept calls and fail them later; they do so before ringing.
RINGING_DEADLINE = timedelta(seconds=60)
# A probe that was not sent, or was throttled, proves nothing. The next one follows after this, not in a hot loop.
UNDECIDED_WAIT = timedelta(seconds=1)
# For this long after a probe is allowed, it calls another person than the last one did.
OTHER_PERSON_FIRST = timedelta(seconds=2)
# While a probe is in flight it is checked again: soon at first, less often as it gets older.
PROBE_RECHECK = timedelta(milliseconds=250)
# An account that has accepted no call for this long may have lost its credentials unnoticed.
PROVEN_FOR = timedelta(hours=1)
# A code in no table counts against the account when this many leads in a row have met it.
UNEXPLAINED_MAX = 3
# A process that cannot reach an account requests none of its leads; one grant is given back with this.
OTHER_PROCESS_WAIT = timedelta(milliseconds=100)
NOTE_ACCEPTED_EVERY_S = 1.0
ALARM = "carrier_refuses"

ProbeResult = Literal["none", "open", "taken", "refused", "undecided"]
_BLOCKS: Mapping[Scope, Blocks] = {
    "account": Blocks.ACCOUNT,
    "number": Blocks.NUMBER,
    "country": Blocks.LEAD,
    "process": Blocks.LEAD,
}
# Refusals other than the cause itself that leave a cooldown as it is.
_UNCHANGED_BY: Mapping[Scope, tuple[str, ...]] = {
    "account": ("refused_unknown", "not_connected"),
    "process": ("not_connected",),
}


def end_reason(place: PlaceResult) -> str:
    """Stored with a refused attempt. `refused` alone is about the person called."""
    if not isinstance(place, Rejected):
        return "throttled"
    if place.reason != "refused" or place.blames == "destination":
        return f"{place.reason}:{place.code}"
    return f"refused_{place.blames}:{place.code}"


def probe_result(cooldown: Cooldown, subject: Subject, carrier: str, now: datetime) -> ProbeResult:
    """The result of the last probe, from its attempt."""
    probe = cooldown.probe
    if probe is None:
        return "none"
    match probe.state:
        case "dialing" | "in_doubt":
            return "open" if probe.sent_at > now - PROBE_DEADLINE else "refused"
        case "accepted" if cooldown.needs_ringing:
            return "open" if probe.sent_at > now - RINGING_DEADLINE else "taken"
        case "rejected":
            # A refusal for another reason shows that the account was accepted, and says nothing about a number or a
            # country.
            kind, scope = (probe.end_reason or "").partition(":")[0], subject.scope
            if kind in (f"refused_{scope}", *_UNCHANGED_BY.get(scope, ())):
                return "refused"
            return "taken" if scope in _UNCHANGED_BY and kind.startswith("refused") else "undecided"
        case "absent" | "unknown":
            return "refused"
        case "ended":
            verdict = failed_for_us(carrier, probe.end_reason)
            return "refused" if isinstance(verdict, Rejected) and verdict.blames == subject.scope else "taken"
        case _:
            return "taken"


def failed_for_us(carrier: str, reason: str | None) -> Rejected | Throttled | None:
    """What the end of an accepted call says about our account, our number or a country. None: nothing."""
    if not reason or not reason.startswith(FAILED_FOR_US):
        return None
    return judge_end(carrier, reason.removeprefix(FAILED_FOR_US))


@dataclass(slots=True, eq=False)
class Cooling:
    """What cooldowns allow a batch, and the probes that it names. Pure; read and written under the account's lock.
    `_process` is the one that dials: accounts that other processes cannot reach do not concern it."""

    _counts: LimitCounts
    _process: str = ""
    _probed: set[Subject] = field(default_factory=set)
    # Cooldowns whose probe was accepted, with the probe; and until when this process leaves accounts out.
    over: dict[Subject, UUID] = field(default_factory=dict)
    unreachable: dict[AccountName, datetime] = field(default_factory=dict)

    def refusal(self, grant: Grant, lead: LockedLead) -> Refusal | None:
        for subject, cooldown, result in self._active(grant, lead):
            if subject in self._probed:
                return self._refuse(lead, subject, self._counts.now + PROBE_RECHECK)
            if cooldown and (refusal := self._closed(lead, subject, cooldown, result)):
                return refusal
        return None

    def admit(self, grant: Grant, lead: LockedLead, send_at: datetime) -> tuple[NewProbe, ...]:
        """The cooldowns that this call probes."""
        carrier, account, new_probes = lead.carrier or "", lead.account or "", []
        for subject, cooldown, result in self._active(grant, lead):
            self._probed.add(subject)
            probes = cooldown.probes if cooldown else 0
            if cooldown and result != "undecided":
                probes += 1
            opens_at = send_at + timedelta(seconds=min(WAIT_MAX_S, FIRST_WAIT_S * 2.0 ** min(probes, 16)))
            new_probes.append(NewProbe(subject, carrier, account, grant.attempt_id, probes, opens_at))
        return tuple(new_probes)

    def _active(
        self, grant: Grant, lead: LockedLead
    ) -> Iterator[tuple[Subject, Cooldown | None, ProbeResult]]:
        """Those that are not over, with the result of their last probe. None: the account has to be proven first."""
        counts, carrier = self._counts, lead.carrier or ""
        account = f"{carrier}/{lead.account or ''}"
        subjects = [
            Subject("process", f"{self._process}:{account}"),
            Subject("account", account),
            Subject("number", str(grant.number_id)),
        ]
        if counts.cooldowns:
            subjects.append(Subject("country", f"{account}/{region_of(lead.phone)}"))
        for subject in subjects:
            cooldown = counts.cooldowns.get(subject)
            if cooldown is None:
                taken_at = counts.taken.get((carrier, lead.account or ""))
                if subject.scope == "account" and (taken_at is None or taken_at <= counts.now - PROVEN_FOR):
                    yield subject, None, "none"
                continue
            result = probe_result(cooldown, subject, carrier, counts.now)
            if result != "taken":
                yield subject, cooldown, result
            elif cooldown.probe is not None:
                self.over[subject] = cooldown.probe.id

    def _closed(
        self, lead: LockedLead, subject: Subject, cooldown: Cooldown, result: ProbeResult
    ) -> Refusal | None:
        now, until, probe = self._counts.now, cooldown.opens_at, cooldown.probe
        if probe is not None and result == "open":
            until = now + max(PROBE_RECHECK, (now - probe.sent_at) / 2)
        elif probe is not None and result == "undecided":
            until = probe.sent_at + UNDECIDED_WAIT
        if until > now:
            return self._refuse(lead, subject, until)
        # The last probe called the same person: others come first.
        until = cooldown.opens_at + OTHER_PERSON_FIRST
        if probe is not None and probe.phone == lead.phone and now < until:
            return Refusal(RefusalReason.COOLDOWN, Blocks.LEAD, until, subject.scope)
        return None

    def _refuse(self, lead: LockedLead, subject: Subject, until: datetime) -> Refusal:
        # Does not name the account: it may be the platform's, and the lead's tenant reads this.
        if subject.scope == "process":
            self.unreachable[lead.carrier or "", lead.account or ""] = until
            until = self._counts.now + OTHER_PROCESS_WAIT
        return Refusal(RefusalReason.COOLDOWN, _BLOCKS[subject.scope], until, subject.scope)


class CarrierUnreachable:
    """Accounts that this process cannot reach now. A hint for its matches: Postgres decides."""

    def __init__(self) -> None:
        self._until_s: dict[AccountName, float] = {}

    def leave_out(self, account: AccountName, seconds: float) -> None:
        self._until_s[account] = time.monotonic() + seconds

    def is_over(self, account: AccountName) -> None:
        self._until_s.pop(account, None)

    def has(self, account: AccountName) -> bool:
        return self._until_s.get(account, 0.0) > time.monotonic() if self._until_s else False

    def accounts(self) -> list[AccountName]:
        now_s = time.monotonic()
        self._until_s = {account: until_s for account, until_s in self._until_s.items() if until_s > now_s}
        return list(self._until_s)


class CarrierAnswer(Value, frozen=True):
    """A carrier's answer to one request, or the failure of a call that it had accepted."""

    attempt_id: UUID
    lead_id: UUID | None
    account: AccountName
    number_id: UUID | None
    phone: Private[str]
    place: PlaceResult
    is_probe: bool = False
    after_acceptance: bool = False


class CooldownWriter:
    """Begins cooldowns by what carriers answered, and ends them. Always after the answers are written, and in
    transactions that touch nothing else: an intent that waits for an attempt holds the account's lock."""

    def __init__(self, database: Database, process: str):
        self._database = database
        self._process = process
        self.unreachable = CarrierUnreachable()
        self._noted_at_s: dict[AccountName, float] = {}

    async def note(self, answers: Sequence[CarrierAnswer]) -> None:
        """What cannot be written now comes back: with the next refusal, or in the probe's own attempt."""
        accepted = [answer for answer in answers if isinstance(answer.place, Accepted)]
        try:
            if len(accepted) < len(answers):
                await self._note_refused(answers)
            await self._note_accepted(accepted)
        except UNAVAILABLE as error:
            log.warning("cooldowns.not_noted", answers=len(answers), error=str(error))

    async def _note_accepted(self, accepted: Sequence[CarrierAnswer]) -> None:
        now_s, unreachable = time.monotonic(), self.unreachable.accounts()
        accounts: set[AccountName] = set()
        reached: set[AccountName] = set()
        probes: list[UUID] = []
        for answer in accepted:
            account = answer.account
            if answer.is_probe:
                probes.append(answer.attempt_id)
            if account in unreachable:
                reached.add(account)
            was_noted = now_s - self._noted_at_s.get(account, 0.0) <= NOTE_ACCEPTED_EVERY_S
            if answer.is_probe or account in unreachable or not was_noted:
                accounts.add(account)
        if not accounts:
            return
        self._noted_at_s |= dict.fromkeys(accounts, now_s)
        subjects = [*map(self._process_subject, reached)]
        async with self._database.connection() as conn:
            over = await cooldowns.note_accepted(conn, accounts, probes, subjects)
        for account in reached:
            self.unreachable.is_over(account)
        await clear_alarms(self._database, over)

    async def _note_refused(self, answers: Sequence[CarrierAnswer]) -> None:
        """The next accepted call counts at once, however recently another one did."""
        refused: dict[Subject, CarrierRefused] = {}
        leads_by_code: dict[tuple[AccountName, str], set[UUID]] = {}
        for answer in answers:
            account, place = answer.account, answer.place
            if not isinstance(place, Rejected):
                continue
            metrics.CARRIER_REFUSALS.labels(account[0], place.blames).inc()
            self._noted_at_s.pop(account, None)
            if subject := self._subject(answer, place.blames):
                why = place.why or ("the carrier cannot be reached" if place.blames == "network" else "")
                refused[subject] = CarrierRefused(
                    subject, account, place.code, why, REMEDIES[place.blames], answer.after_acceptance
                )
            elif place.blames == "unknown" and answer.lead_id:
                leads_by_code.setdefault((account, place.code), set()).add(answer.lead_id)
        for (account, code), leads in leads_by_code.items():
            async with self._database.connection() as conn:
                in_a_row = await cooldowns.note_unexplained(conn, account, code, sorted(leads))
            if in_a_row >= UNEXPLAINED_MAX:  # the account seems to be the cause of a code in no table
                subject = Subject("account", "/".join(account))
                why = f"{in_a_row} people in a row met a code that is in no table"
                refused[subject] = CarrierRefused(subject, account, code, why, REMEDIES["unknown"])
        await self._begin(list(refused.values()))
        for each in refused.values():
            if each.subject.scope == "process":
                self.unreachable.leave_out(each.account, FIRST_WAIT_S)
                async with self._database.connection() as conn:
                    processes = await cooldowns.unreachable_processes(conn, each.account)
                if processes >= 2:
                    subject = Subject("account", "/".join(each.account))
                    why = f"{processes} processes cannot reach the carrier"
                    await self._begin([CarrierRefused(subject, each.account, each.code, why, each.remedy)])

    def _subject(self, answer: CarrierAnswer, blames: Blame) -> Subject | None:
        account = "/".join(answer.account)
        match blames:
            case "account":
                return Subject("account", account)
            case "number" if answer.number_id is not None:
                return Subject("number", str(answer.number_id))
            case "country":
                return Subject("country", f"{account}/{region_of(answer.phone)}")
            case "network":
                return self._process_subject(answer.account)
            case _:
                return None

    def _process_subject(self, account: AccountName) -> Subject:
        return Subject("process", f"{self._process}:{'/'.join(account)}")

    async def _begin(self, refused: Sequence[CarrierRefused]) -> None:
        if not refused:
            return
        async with self._database.connection() as conn:
            begun = await cooldowns.begin(conn, refused, first_wait_s=FIRST_WAIT_S)
        remedies = {each.subject: each.remedy for each in refused}
        for each in begun:
            log.warning("cooldown.begun", scope=each.subject.scope, subject=each.subject.name, code=each.code)
            detail = {
                "refused": each.subject.scope,
                "code": each.code,
                "cause": each.why,
                "remedy": remedies[each.subject],
                "since": each.since.isoformat(),
                "tried_again_at": each.until.isoformat(),
            }
            await raise_alarm(self._database, ALARM, alarm_subject(each.subject), detail)


async def clear_alarms(where: "Connection | Database", over: Sequence[Subject]) -> None:
    """These cooldowns are over. In a transaction it comes last, as all alarms do, and always in one order."""
    for subject in sorted(over, key=alarm_subject):
        log.info("cooldown.over", scope=subject.scope, subject=subject.name)
        await clear_alarm(where, ALARM, alarm_subject(subject))


def alarm_subject(subject: Subject) -> str:
    return subject.name if subject.scope != "number" else f"number {subject.name}"
