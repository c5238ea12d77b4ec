"""Intent before effect: an attempt is committed before a byte leaves for the carrier.

One transaction per batch, in three round trips at READ COMMITTED: lock the leads; lock the limits and count; write.
Limits that few merchants have are counted in a fourth, refusals are written in a fifth. `IntentBatch.write` names its
steps; the gates judge in between, on what was read under the locks. Counting is a statement of its own, later than the
locks, because a statement's snapshot is older than the locks it waits for; a Postgres function runs one after the
other. Lock order, here and everywhere: leads, limits (persons, merchants, overdialled groups of agents, accounts, then
numbers), new allocations, attempts, existing allocations, mailboxes, jobs; each sorted.

The partial unique indexes of `attempts` guard the promise; Valkey's grant is a hint. The sender may send only what is
returned here, and every refused grant has a reason. A COMMIT without a reply may have gone through: none of its calls
is sent, and its attempts are disowned.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import blake2b
from typing import Protocol
from uuid import UUID

from trunkline.control.continuity import ContinuityMark
from trunkline.dispatch.cooldowns import CarrierUnreachable, Cooling, clear_alarms
from trunkline.dispatch.gates import (
    NO_NUMBER,
    RETRY_AFTER,
    AccountPace,
    AgentRule,
    Case,
    CountedLimits,
    Stopped,
    case_of,
    conditional_questions,
    judge,
    questions,
)
from trunkline.dispatch.overdialling import Overdialling, Terms
from trunkline.dispatch.policy_cache import Policies
from trunkline.model import SLOT_TAKEN, Blocks, Entry, Grant, Intent, Refusal, RefusalReason, Slot
from trunkline.states import LeadStatus
from trunkline.store import allocations, cooldowns, dispatch
from trunkline.store.cooldowns import NewProbe, Subject
from trunkline.store.database import UNAVAILABLE, Connection, Database
from trunkline.store.dispatch import (
    CONTENDED,
    UNACCEPTABLE,
    Explanation,
    LimitCounts,
    LockedLead,
    NewAttempt,
    Owners,
)
from trunkline.telemetry import get_logger, metrics
from trunkline.value import Value, replace

log = get_logger(__name__)

LOCK_TIMEOUT_MS = 500
# For a grant alone, after its batch failed: a lock was held for 500 ms already, and other grants are waiting.
LOCK_TIMEOUT_ALONE_MS = 50
# A dialer that is stopped inside its intent blocks others for no longer than this.
TRANSACTION_TIMEOUT_MS = 2000
ERROR_PAUSE = timedelta(seconds=30)
# A change of a lead locks its row for milliseconds. Longer than the match looks ahead, or the match would grant the
# lead again at once.
CHANGE_TIME = timedelta(milliseconds=150)
# A call that lost its slot to another one gets a new proposal after this.
SLOT_AGAIN = timedelta(milliseconds=20)
# Lock order of the names: the ones that most intents need come last, and are held for the shortest time.
_RANKS = {"person": 0, "merchant": 1, "overdial": 2, "account": 3}
_IS_CONTENDED = Refusal(RefusalReason.CONTENDED)


class Marked(Protocol):
    @property
    def mark(self) -> ContinuityMark | None: ...


@dataclass(frozen=True, slots=True)
class Rules:
    """The inputs of an intent other than Postgres."""

    policies: Policies
    stopped: Stopped
    # Knows the database that this process has seen: on an earlier state of it (a restore) no call starts.
    guardian: Marked
    account_pace: AccountPace
    agents: AgentRule
    overdialling: Overdialling
    # Accounts that this process leaves out, because it cannot reach their carrier.
    unreachable: CarrierUnreachable


class Intents(Value, frozen=True):
    """The calls to send, the refused grants, and the attempts whose COMMIT got no reply: they are not sent, and have to
    be disowned."""

    committed: tuple[Intent, ...] = ()
    refused: Mapping[Grant, Refusal] = {}
    lost: tuple[NewAttempt, ...] = ()
    # Proposed slots that Postgres has given to another call, or whose pod is gone.
    lost_slots: tuple[Slot, ...] = ()

    def __add__(self, other: "Intents") -> "Intents":
        return Intents(
            self.committed + other.committed,
            {**self.refused, **other.refused},
            self.lost + other.lost,
            self.lost_slots + other.lost_slots,
        )


async def intend(
    database: Database, grants: Sequence[Grant], dialer: str, rules: Rules, slots: Mapping[UUID, Slot]
) -> Intents:
    """One transaction for all; if a lock or a single lead makes it fail, one for each, so that no other grant is held
    up. `slots`: the agents that were proposed for the grants, by attempt."""
    try:
        return await IntentBatch(grants, dialer, rules, slots).commit(database, LOCK_TIMEOUT_MS)
    except (*CONTENDED, *UNACCEPTABLE) as error:
        if len(grants) == 1:
            return await _refuse_failed(database, grants[0], error)
        log.warning("intent.batch_failed", grants=len(grants), error=str(error))
    intents = Intents()
    for position, grant in enumerate(grants):
        try:
            intents += await _commit_alone(database, IntentBatch([grant], dialer, rules, slots), grant)
        except Exception as error:
            # The grants before it are committed and have to be sent; the others are given back.
            log.warning("intent.rest_failed", grants=len(grants) - position, error=str(error))
            return intents + Intents(refused=dict.fromkeys(grants[position:], _IS_CONTENDED))
    return intents


async def _commit_alone(database: Database, batch: "IntentBatch", grant: Grant) -> Intents:
    try:
        return await batch.commit(database, LOCK_TIMEOUT_ALONE_MS)
    except (*CONTENDED, *UNACCEPTABLE) as error:
        return await _refuse_failed(database, grant, error)


async def _refuse_failed(database: Database, grant: Grant, error: BaseException) -> Intents:
    """A lead that breaks its own intent is deferred, longer each time, and ends after ten times."""
    refusal = _IS_CONTENDED
    if not isinstance(error, CONTENDED):
        log.error("intent.lead_failed", lead_id=str(grant.lead_id), error=str(error))
        async with database.connection() as conn:
            refusal = await dispatch.defer_broken(conn, grant.lead_id, grant.version, str(error))
    return Intents(refused={grant: refusal})


async def disown(database: Database, lost: Sequence[NewAttempt], dialer: str) -> list[Entry]:
    """After a COMMIT without a reply: waits for that commit, writes the attempts as not sent, and returns the leads
    that are due again. It may be repeated until it succeeds; a process that dies before that leaves attempts in
    `dialing`, and the checker asks the carrier about them."""
    async with database.transaction() as tx:
        return await dispatch.disown(tx, lost, dialer)


@dataclass(slots=True, eq=False)
class IntentBatch:
    """The grants of one transaction, and what becomes of each."""

    _grants: Sequence[Grant]
    _dialer: str
    _rules: Rules
    # The agents that were proposed, by attempt.
    _slots: Mapping[UUID, Slot]
    # Those that a gate has not refused yet.
    _cases: list[Case] = field(default_factory=list)
    # By attempt: the locked leads; the calls that may be dialled without a reserved agent; the refusals.
    _leads: dict[UUID, LockedLead] = field(default_factory=dict)
    _terms: Mapping[UUID, Terms] = field(default_factory=dict)
    _refusals: dict[UUID, Refusal] = field(default_factory=dict)
    _admitted: list[NewAttempt] = field(default_factory=list)
    # Cooldowns whose probe was accepted.
    _over: Mapping[Subject, UUID] = field(default_factory=dict)
    # The inserted ones, and proposed slots that another call has, or whose pod is gone.
    attempts: list[NewAttempt] = field(default_factory=list)
    _committed: list[Intent] = field(default_factory=list)
    _lost_slots: list[Slot] = field(default_factory=list)

    async def commit(self, database: Database, lock_timeout_ms: int) -> Intents:
        is_written = False
        try:
            async with database.transaction() as tx:
                await self.write(tx, lock_timeout_ms)
                is_written = True
        except UNAVAILABLE as error:
            if isinstance(error, UNACCEPTABLE) or not is_written:
                raise
            log.warning("intent.commit_not_answered", attempts=len(self.attempts), error=str(error))
            lost = {attempt.grant.attempt_id for attempt in self.attempts}
            others = [grant for grant in self._grants if grant.attempt_id not in lost]
            return Intents(refused=dict.fromkeys(others, _IS_CONTENDED), lost=tuple(self.attempts))
        refused: dict[Grant, Refusal] = {}
        for grant in self._grants:
            if refusal := self._refusals.get(grant.attempt_id):
                refused[grant] = refusal
                metrics.INTENTS_REFUSED.labels(refusal.reason.value).inc()
        return Intents(tuple(self._committed), refused, lost_slots=tuple(self._lost_slots))

    async def write(self, tx: Connection, lock_timeout_ms: int) -> None:
        """Everything but the commit."""
        mark = self._rules.guardian.mark
        leads = await dispatch.lock_granted(
            tx,
            self._grants,
            lock_timeout_ms=lock_timeout_ms,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            known=(mark.installation, mark.beat) if mark else None,
        )
        if leads:
            await self._read_policies(tx, leads)
            counts = await self._lock_limits(tx)
            self._judge(counts)
            if self._cases:
                await self._admit(tx, counts)
            await self._write(tx)
        if len(self._leads) < len(self._grants):
            await self._explain(tx)

    async def _read_policies(self, tx: Connection, leads: Mapping[UUID, LockedLead]) -> None:
        """A lead that was granted twice in one batch is taken once. A case that cannot be built is refused, and does
        not fail the batch."""
        unclaimed, granted = dict(leads), []
        for grant in self._grants:
            if lead := unclaimed.pop(grant.lead_id, None):
                self._leads[grant.attempt_id] = lead
                granted.append(grant)
        policies = await self._rules.policies.of(tx, self._leads.values())
        may_overdial = []
        for grant, lead, policy in zip(granted, self._leads.values(), policies, strict=True):
            try:
                case = case_of(grant, lead, policy)
            except Exception as error:
                self._refusals[grant.attempt_id] = _failed(lead, error)
                continue
            self._cases.append(case)
            if policy.abandon_max and self._rules.agents.needs_agent(lead):
                may_overdial.append(case)
        if may_overdial:
            self._terms = await self._rules.overdialling.terms(tx, may_overdial)

    async def _lock_limits(self, tx: Connection) -> LimitCounts:
        """The names under which the cases are counted; and count under the locks. The account's lock covers the paces
        of its numbers, the merchant's those of its campaigns."""
        names: set[tuple[str, str]] = set()
        for case in self._cases:
            lead, terms = case.lead, self._terms.get(case.grant.attempt_id)
            names |= {("person", lead.phone), ("account", f"{lead.carrier}/{lead.account}")}
            if lead.merchant_max_concurrent is not None or case.policy.counts_by_merchant:
                names.add(("merchant", lead.merchant_id))
            if terms is not None:
                names.update(("overdial", group) for group in terms.groups)
        lock_keys = _lock_keys(names)
        return await dispatch.count(tx, questions(self._cases), lock_keys)

    def _judge(self, counts: LimitCounts) -> None:
        cases, self._cases = self._cases, []
        for unlocked in cases:
            case = replace(unlocked, number=counts.numbers.get(unlocked.grant.number_id, NO_NUMBER))
            try:
                refusal = next(judge(case, self._rules.stopped), None)
            except Exception as error:
                refusal = _failed(case.lead, error)
            if refusal:
                self._refusals[case.grant.attempt_id] = refusal
            else:
                self._cases.append(case)

    async def _admit(self, tx: Connection, counts: LimitCounts) -> None:
        """Refused cases do not reach the counters: they use nothing up."""
        rules, cases = self._rules, self._cases
        if conditional := conditional_questions(cases):
            await dispatch.count_conditional(tx, conditional, counts)
        overdialled = await rules.overdialling.count(tx, self._terms, cases, self._slots)
        cooling = Cooling(counts, self._dialer)
        counted = CountedLimits(counts, rules.account_pace, cooling, rules.agents, overdialled)
        for case in sorted(cases, key=counted.earliest_at):
            match counted.admit(case):
                case NewAttempt() as admitted:
                    self._admitted.append(admitted)
                case Refusal() as refusal:
                    self._refusals[case.grant.attempt_id] = refusal
        if overdialled.headrooms:
            rules.overdialling.note(overdialled)
        self._over = cooling.over
        for account, until in cooling.unreachable.items():
            rules.unreachable.leave_out(account, (until - counts.now).total_seconds())

    async def _write(self, tx: Connection) -> None:
        inserted, reserved = set[UUID](), set[UUID]()
        if self._admitted:
            inserted, reserved = await dispatch.write_attempts(tx, self._admitted, self._dialer)
        if self._refusals:
            await self._write_refusals(tx, self._refusals)
        unreserved, conflicts, probes = [], [], list[NewProbe]()
        for attempt in self._admitted:
            attempt_id = attempt.grant.attempt_id
            if attempt_id in inserted:
                self.attempts.append(attempt)
                self._committed.append(attempt.intent)
                probes += attempt.probes
            elif attempt.intent.slot is not None and attempt_id not in reserved:
                unreserved.append(attempt)
            else:
                conflicts.append(attempt)
        if unreserved:
            await self._refuse_unreserved(tx, unreserved)
        if conflicts:
            await self._refuse_conflicts(tx, conflicts)
        # Few intents have probes. They are written after the attempts: an attempt that was not inserted is no probe.
        over = await cooldowns.end_accepted(tx, self._over.items()) if self._over else []
        if probes:
            await dispatch.name_probes(tx, probes)
        if over:
            await clear_alarms(tx, over)

    async def _write_refusals(self, tx: Connection, attempt_ids: Iterable[UUID]) -> None:
        """Of grants whose lead was locked."""
        refused = {each: self._leads[each] for each in attempt_ids}
        moved = await dispatch.write_refusals(
            tx, [(lead, self._refusals[attempt_id]) for attempt_id, lead in refused.items()]
        )
        for attempt_id, lead in refused.items():
            if lead.id in moved:
                self._refusals[attempt_id] = replace(self._refusals[attempt_id], moved=moved[lead.id])

    async def _refuse_unreserved(self, tx: Connection, unreserved: Sequence[NewAttempt]) -> None:
        """The lead keeps its position: the next round proposes other slots."""
        for attempt in unreserved:
            until, slot = attempt.lead.now + SLOT_AGAIN, attempt.intent.slot
            refusal = Refusal(RefusalReason.AGENTS, Blocks.LEAD, until, SLOT_TAKEN)
            self._refusals[attempt.grant.attempt_id] = refusal
            assert slot is not None
            self._lost_slots.append(slot)
        await self._write_refusals(tx, [attempt.grant.attempt_id for attempt in unreserved])

    async def _refuse_conflicts(self, tx: Connection, conflicts: Sequence[NewAttempt]) -> None:
        await allocations.drop(tx, [a.grant.attempt_id for a in conflicts if a.intent.slot is not None])
        owners = await dispatch.owners(tx, conflicts)
        ids = [attempt.grant.attempt_id for attempt in conflicts]
        for attempt_id, attempt in zip(ids, conflicts, strict=True):
            self._refusals[attempt_id] = _conflict(attempt, owners[attempt_id])
        # A refusal that names an attempt of this batch which was not inserted has lost its reason.
        until = conflicts[0].lead.now + RETRY_AFTER
        for attempt_id, refusal in self._refusals.items():
            if refusal.reason is RefusalReason.PERSON and refusal.owner in ids:
                self._refusals[attempt_id] = Refusal(RefusalReason.PERSON, Blocks.LEAD, until)
        await self._write_refusals(tx, ids)

    async def _explain(self, tx: Connection) -> None:
        """Grants whose lead was not locked, or was locked for another grant of the batch."""
        unlocked = [grant for grant in self._grants if grant.attempt_id not in self._leads]
        explanations = await dispatch.explain(tx, unlocked)
        for grant in unlocked:
            self._refusals[grant.attempt_id] = _disagreement(grant, explanations[grant.attempt_id])


def _lock_keys(names: Iterable[tuple[str, str]]) -> list[int]:
    """Advisory locks have numbers. Two names with the same number only wait for each other needlessly."""
    keys = set()
    for kind, subject in names:
        digest = blake2b(f"trunkline:{kind}:{subject}".encode(), digest_size=8).digest()
        keys.add((_RANKS[kind], int.from_bytes(digest, signed=True)))
    return [key for _, key in sorted(keys)]


def _failed(lead: LockedLead, error: Exception) -> Refusal:
    log.error("gate.failed", lead_id=str(lead.id), error=str(error), exc_info=error)
    return Refusal(RefusalReason.ERROR, until=lead.now + ERROR_PAUSE, subject="gate")


def _conflict(attempt: NewAttempt, owners: Owners) -> Refusal:
    """Without an owner: the conflicting attempt existed when the row was refused, and has ended since."""
    if owners.lead is not None:
        return Refusal(RefusalReason.PERSON, Blocks.PERSON, subject="same_lead", owner=owners.lead)
    if owners.channel is not None:
        return Refusal(RefusalReason.CHANNEL, Blocks.CHANNEL, owner=owners.channel)
    if owners.person is not None:
        return Refusal(RefusalReason.PERSON, Blocks.PERSON, owner=owners.person)
    return Refusal(RefusalReason.CHANNEL, Blocks.LEAD, attempt.lead.now + RETRY_AFTER)


def _disagreement(grant: Grant, explanation: Explanation) -> Refusal:
    """Without a time, no dialer may call this version of the lead any more."""
    if explanation.status != LeadStatus.BACKLOG or explanation.version != grant.version:
        return Refusal(RefusalReason.LEAD, subject=explanation.status or "gone")
    if not explanation.is_due:
        return Refusal(RefusalReason.NOT_DUE, until=explanation.due_at)
    if explanation.is_stale:
        return Refusal(RefusalReason.STALE_GRANT, until=explanation.now)
    # Or the lead became due in the meantime.
    return Refusal(RefusalReason.LEAD, until=explanation.now + CHANGE_TIME, subject="being_changed")
