"""One intent's transaction, in three round trips at READ COMMITTED: lock the leads; lock the limits and count; write.
Limits that few merchants have are counted in a fourth, refusals are written in a fifth.

The gates judge in between, on what was read under the locks. Counting is a statement of its own, later than the locks,
because a statement's snapshot is older than the locks it waits for; a Postgres function runs one after the other. Lock
order, here and everywhere: leads, limits (persons, merchants, overdialled groups of agents, accounts, then numbers),
new allocations, attempts, existing allocations, mailboxes, jobs; each sorted.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import blake2b
from uuid import UUID

from trunkline.control.continuity import ContinuityMark
from trunkline.dispatch.agents import AGENTS_ELSEWHERE, AgentRule
from trunkline.dispatch.cooldowns import CarrierUnreachable, Cooling, clear_alarms
from trunkline.dispatch.gates import RETRY_AFTER, Case, Stopped, judge, never_stopped
from trunkline.dispatch.gates_limits import (
    NO_SLOTS,
    AccountPace,
    Admitted,
    CountedLimits,
    conditional_questions,
    no_account_pace,
    questions,
)
from trunkline.dispatch.overdialling import Overdialled, Overdialling, Terms
from trunkline.dispatch.policy_cache import Owner, Policies
from trunkline.dispatch.refusals import SLOT_TAKEN, Blocks, GateRefusal, Refusal, RefusalReason
from trunkline.model import Entry, Finish, Grant, Intent, Slot
from trunkline.states import LeadStatus
from trunkline.store import allocations, cooldowns, dispatch, limits
from trunkline.store.cooldowns import Subject
from trunkline.store.database import Connection
from trunkline.store.dispatch import (
    Explanation,
    IntentWrites,
    LockedLead,
    Move,
    NewAttempt,
    NewDecision,
    Owners,
)
from trunkline.store.limits import LimitCounts, Questions
from trunkline.telemetry import get_logger

log = get_logger(__name__)

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

# Called in the transaction with the leads that end without a call.
OnFinished = Callable[[Connection, dict[UUID, Finish]], Awaitable[None]]


def no_mark() -> ContinuityMark | None:
    return None


async def ignore_finished(tx: Connection, ends: dict[UUID, Finish]) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Rules:
    """The inputs of an intent other than Postgres."""

    policies: Policies = field(default_factory=Policies)
    stopped: Stopped = never_stopped
    # The database that this process has seen: on an earlier state of it (a restore) no call starts.
    mark: Callable[[], ContinuityMark | None] = no_mark
    account_pace: AccountPace = no_account_pace
    agents: AgentRule = AGENTS_ELSEWHERE
    overdialling: Overdialling = field(default_factory=Overdialling)
    on_finished: OnFinished = ignore_finished
    # Accounts that this process leaves out, because it cannot reach their carrier.
    unreachable: CarrierUnreachable = field(default_factory=CarrierUnreachable)


class IntentBatch:
    """`slots`: the agents that were proposed for the grants, by attempt."""

    def __init__(
        self, grants: Sequence[Grant], dialer: str, rules: Rules, slots: Mapping[UUID, Slot] = NO_SLOTS
    ):
        self._grants = grants
        self._dialer = dialer
        self._rules = rules
        self._slots = slots
        # Proposed slots that another call has, or whose pod is gone.
        self.lost_slots: list[Slot] = []
        self._cases: list[Case] = []
        # By attempt: the calls that may be dialled without a reserved agent.
        self._terms: dict[UUID, Terms] = {}
        self._admitted: list[Admitted] = []
        self._cooling: Cooling | None = None
        # By attempt id.
        self._gate_refusals: dict[UUID, GateRefusal] = {}
        self._moved: dict[UUID, Entry] = {}
        self.attempts: list[NewAttempt] = []

    async def write(self, tx: Connection, lock_timeout_ms: int) -> None:
        """Everything but the commit."""
        leads = await self._lock_leads(tx, lock_timeout_ms)
        if leads:
            counts = await self._lock_limits(tx, leads)
            self._judge()
            await self._admit(tx, counts)
            await self._write(tx)
        await self._explain(tx)

    def intents(self) -> tuple[Intent, ...]:
        probes = {probe.attempt_id for admitted in self._admitted for probe in admitted.probes}
        return tuple(_intent(each, is_probe=each.grant.attempt_id in probes) for each in self.attempts)

    def refusals(self) -> tuple[Refusal, ...]:
        return tuple(
            Refusal.of(grant, refusal, self._moved.get(grant.lead_id))
            for grant in self._grants
            if (refusal := self._gate_refusals.get(grant.attempt_id))
        )

    async def _lock_leads(self, tx: Connection, lock_timeout_ms: int) -> dict[UUID, LockedLead]:
        mark = self._rules.mark()
        return await dispatch.lock_granted(
            tx,
            self._grants,
            lock_timeout_ms=lock_timeout_ms,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            known=(mark.installation, mark.beat) if mark else None,
        )

    async def _lock_limits(self, tx: Connection, leads: dict[UUID, LockedLead]) -> LimitCounts:
        """And count under the locks. A lead that was granted twice in one batch is taken once."""
        granted = {grant.lead_id: grant for grant in reversed(self._grants) if grant.lead_id in leads}
        grants = [grant for grant in self._grants if granted.get(grant.lead_id) is grant]
        policies = await self._rules.policies.of(tx, map(_owner, leads.values()))
        cases = [
            Case(grant, leads[grant.lead_id], None, policies[_owner(leads[grant.lead_id])])
            for grant in grants
        ]
        self._terms = await self._rules.overdialling.terms(tx, filter(self._needs_agent, cases))
        keys = _lock_keys(name for case in cases for name in self._names(case))
        numbers, counts = await limits.lock_and_count(tx, keys, self._questions(cases))
        self._cases = [
            Case(case.grant, case.lead, numbers.get(case.grant.number_id), case.policy) for case in cases
        ]
        return counts

    def _names(self, case: Case) -> Iterator[tuple[str, str]]:
        """The names under which a case is counted. The account's lock covers the paces of its numbers, the merchant's
        those of its campaigns."""
        lead, policy = case.lead, case.policy
        yield "person", lead.phone
        if lead.merchant_max_concurrent is not None or (policy and policy.counts_by_merchant):
            yield "merchant", lead.merchant_id
        if terms := self._terms.get(case.grant.attempt_id):
            for group in terms.groups:
                yield "overdial", group
        yield "account", f"{lead.carrier}/{lead.account}"

    def _needs_agent(self, case: Case) -> bool:
        lead = case.lead
        return self._rules.agents.needs_agent(lead.carrier or "", are_elsewhere=lead.are_agents_elsewhere)

    def _questions(self, cases: Sequence[Case]) -> Questions:
        """A case whose questions cannot be built is refused, and does not fail the batch."""
        try:
            return questions(cases)
        except Exception:  # any error: `_is_askable` meets it again and logs it with its case
            return questions(filter(self._is_askable, cases))

    def _is_askable(self, case: Case) -> bool:
        try:
            questions([case])
        except Exception as error:
            self._gate_refusals[case.grant.attempt_id] = _failed(case, error)
            return False
        return True

    def _judge(self) -> None:
        for case in self._cases:
            if case.grant.attempt_id in self._gate_refusals:
                continue
            try:
                refusal = judge(case, self._rules.stopped)
            except Exception as error:
                refusal = _failed(case, error)
            if refusal:
                self._gate_refusals[case.grant.attempt_id] = refusal

    async def _admit(self, tx: Connection, counts: LimitCounts) -> None:
        """Refused cases do not reach the counters: they use nothing up."""
        cases = [case for case in self._cases if case.grant.attempt_id not in self._gate_refusals]
        if not cases:
            return
        await limits.count_conditional(tx, conditional_questions(cases), counts)
        overdialled = await self._count_overdialled(tx, cases)
        rules = self._rules
        counted = CountedLimits(
            counts, rules.account_pace, rules.agents, self._slots, overdialled, self._dialer
        )
        self._cooling = counted.cooling
        for case in sorted(cases, key=counted.earliest_at):
            match counted.admit(case):
                case Admitted() as admitted:
                    self._admitted.append(admitted)
                case GateRefusal() as refusal:
                    self._gate_refusals[case.grant.attempt_id] = refusal
        rules.overdialling.note(overdialled)
        for account, until in counted.cooling.unreachable.items():
            rules.unreachable.leave_out(account, (until - counts.now).total_seconds())

    async def _count_overdialled(self, tx: Connection, cases: Sequence[Case]) -> Overdialled:
        """In a later statement than the locks. Cases of overdialled campaigns that need an agent after all get one
        picked here: the need is known only from these counts."""
        ids = {case.grant.attempt_id for case in cases}
        terms = {attempt_id: each for attempt_id, each in self._terms.items() if attempt_id in ids}
        slots = [slot for attempt_id, slot in self._slots.items() if attempt_id in ids]
        overdialling = self._rules.overdialling
        overdialled = await overdialling.count(tx, terms, cases, slots)
        unproposed = [each for each in terms if overdialled.is_reserved(each) and each not in self._slots]
        self._slots = {**self._slots, **await overdialling.pick(tx, overdialled, unproposed)}
        return overdialled

    async def _write(self, tx: Connection) -> None:
        writes = self._collect_writes()
        written = await dispatch.write(tx, writes, self._dialer)
        self._moved = dict(written.moved)
        if writes.ends:
            await self._rules.on_finished(tx, writes.ends)
        self.attempts = [a for a in writes.attempts if a.grant.attempt_id in written.inserted]
        refused = [a for a in writes.attempts if a.grant.attempt_id not in written.inserted]
        unreserved = [a for a in refused if a.slot is not None and a.grant.attempt_id not in written.reserved]
        if unreserved:
            await self._refuse_unreserved(tx, unreserved)
        conflicts = [a for a in refused if a not in unreserved]
        if conflicts:
            await allocations.drop(tx, [a.grant.attempt_id for a in conflicts if a.slot is not None])
            await self._refuse_conflicts(tx, conflicts)
        await self._write_probes(tx, written.inserted)

    async def _write_probes(self, tx: Connection, inserted: frozenset[UUID]) -> None:
        """Few intents have probes. They are written after the attempts: an attempt that was not inserted is no
        probe."""
        probes = [p for each in self._admitted for p in each.probes if p.attempt_id in inserted]
        over: list[Subject] = []
        if self._cooling is not None and self._cooling.over:
            over = await cooldowns.end_accepted(tx, self._cooling.over.items())
        if probes:
            await cooldowns.name_probes(tx, probes)
        if over:
            await clear_alarms(tx, over)

    def _collect_writes(self) -> IntentWrites:
        writes = IntentWrites(
            attempts=[admitted.attempt for admitted in self._admitted],
            next_starts=[start for admitted in self._admitted for start in admitted.next_starts],
        )
        for case in self._cases:
            refusal = self._gate_refusals.get(case.grant.attempt_id)
            if refusal is None:
                continue
            writes.decisions.append(_decision(case.lead, refusal))
            if refusal.finish:
                writes.ends[case.lead.id] = refusal.finish
            elif refusal.due_at:
                writes.moves[case.lead.id] = Move(refusal.due_at, refusal.closes_at)
        return writes

    async def _refuse_unreserved(self, tx: Connection, unreserved: Sequence[NewAttempt]) -> None:
        """The lead keeps its position: the next round proposes other slots."""
        for attempt in unreserved:
            refusal = GateRefusal(
                RefusalReason.AGENTS, Blocks.LEAD, attempt.lead.now + SLOT_AGAIN, subject=SLOT_TAKEN
            )
            self._gate_refusals[attempt.grant.attempt_id] = refusal
            assert attempt.slot is not None
            self.lost_slots.append(attempt.slot)
        decisions = [_decision(a.lead, self._gate_refusals[a.grant.attempt_id]) for a in unreserved]
        await dispatch.write(tx, IntentWrites(decisions=decisions), self._dialer)

    async def _refuse_conflicts(self, tx: Connection, conflicts: Sequence[NewAttempt]) -> None:
        owners = await dispatch.owners(tx, conflicts)
        for attempt in conflicts:
            self._gate_refusals[attempt.grant.attempt_id] = _conflict(
                attempt, owners[attempt.grant.attempt_id]
            )
        self._retry_after_conflicts({attempt.grant.attempt_id for attempt in conflicts})
        decisions = [_decision(a.lead, self._gate_refusals[a.grant.attempt_id]) for a in conflicts]
        await dispatch.write(tx, IntentWrites(decisions=decisions), self._dialer)

    def _retry_after_conflicts(self, conflicts: set[UUID]) -> None:
        """A refusal that names an attempt of this batch which was not inserted has lost its reason."""
        for attempt_id, refusal in self._gate_refusals.items():
            if refusal.reason is RefusalReason.PERSON and refusal.owner in conflicts:
                until = self._cases[0].lead.now + RETRY_AFTER
                self._gate_refusals[attempt_id] = GateRefusal(RefusalReason.PERSON, Blocks.LEAD, until)

    async def _explain(self, tx: Connection) -> None:
        """Grants whose lead was not locked, or was locked for another grant of the batch."""
        judged = {case.grant.attempt_id for case in self._cases}
        unjudged = [grant for grant in self._grants if grant.attempt_id not in judged]
        if unjudged:
            explanations = await dispatch.explain(tx, unjudged)
            self._gate_refusals |= {
                grant.attempt_id: _disagreement(grant, explanations[grant.attempt_id]) for grant in unjudged
            }


def _lock_keys(names: Iterable[tuple[str, str]]) -> list[int]:
    """Advisory locks have numbers. Two names with the same number only wait for each other needlessly."""
    ordered = sorted((_RANKS[kind], _lock_key(kind, subject)) for kind, subject in set(names))
    return [key for _, key in ordered]


def _lock_key(kind: str, subject: str) -> int:
    digest = blake2b(f"trunkline:{kind}:{subject}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


def _owner(lead: LockedLead) -> Owner:
    return Owner(lead.reseller_id, lead.merchant_id, lead.campaign_id)


def _failed(case: Case, error: Exception) -> GateRefusal:
    log.error("gate.failed", lead_id=str(case.lead.id), error=str(error), exc_info=error)
    return GateRefusal(RefusalReason.ERROR, until=case.lead.now + ERROR_PAUSE, subject="gate")


def _decision(lead: LockedLead, refusal: GateRefusal) -> NewDecision:
    return NewDecision(lead.id, refusal.reason.value, lead.merchant_id, refusal.subject, refusal.until)


def _conflict(attempt: NewAttempt, owners: Owners) -> GateRefusal:
    """Without an owner: the conflicting attempt existed when the row was refused, and has ended since."""
    if owners.lead is not None:
        return GateRefusal(RefusalReason.PERSON, Blocks.PERSON, subject="same_lead", owner=owners.lead)
    if owners.channel is not None:
        return GateRefusal(RefusalReason.CHANNEL, Blocks.CHANNEL, owner=owners.channel)
    if owners.person is not None:
        return GateRefusal(RefusalReason.PERSON, Blocks.PERSON, owner=owners.person)
    return GateRefusal(RefusalReason.CHANNEL, Blocks.LEAD, attempt.lead.now + RETRY_AFTER)


def _disagreement(grant: Grant, explanation: Explanation) -> GateRefusal:
    """Without a time, no dialer may call this version of the lead any more."""
    if explanation.status != LeadStatus.BACKLOG or explanation.version != grant.version:
        return GateRefusal(RefusalReason.LEAD, subject=explanation.status or "gone")
    if not explanation.is_due:
        return GateRefusal(RefusalReason.NOT_DUE, until=explanation.due_at)
    if explanation.is_stale:
        return GateRefusal(RefusalReason.STALE_GRANT, until=explanation.now)
    # Or the lead became due in the meantime.
    return GateRefusal(RefusalReason.LEAD, until=explanation.now + CHANGE_TIME, subject="being_changed")


def _intent(attempt: NewAttempt, *, is_probe: bool) -> Intent:
    return Intent(
        attempt_id=attempt.grant.attempt_id,
        lead_id=attempt.lead.id,
        carrier=attempt.number.carrier,
        account=attempt.number.account,
        to_phone=attempt.lead.phone,
        from_phone=attempt.number.e164,
        due_at=attempt.lead.due_at,
        send_at=attempt.send_at,
        send_in_s=(attempt.send_at - attempt.intent_at).total_seconds(),
        closes_at=attempt.closes_at,
        payload=attempt.lead.payload,
        attempt_no=attempt.lead.attempt_count + 1,
        slot=attempt.slot,
        ring_min_s=attempt.ring_min_s,
        ready_at=attempt.ready_at,
        number_id=attempt.number.id,
        is_probe=is_probe,
    )
