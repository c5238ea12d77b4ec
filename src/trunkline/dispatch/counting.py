"""Counts the calls that end: how many are answered, and how many of these find no agent (abandoned calls).

In the transaction that settles them, so that a rate over 30 days misses none. Every answered call without an agent
counts as abandoned, whether overdialling caused it or not.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from uuid import UUID

from trunkline.dispatch import call_evidence
from trunkline.leads.calling_policy import Effective
from trunkline.leads.outcomes import CallVerdict
from trunkline.model import Agent, CallFacts, Outcome
from trunkline.states import AttemptState
from trunkline.store import abandonment
from trunkline.store.abandonment import Correction, EndedCall
from trunkline.store.attempts import Attempt
from trunkline.store.database import Connection
from trunkline.telemetry import metrics


async def count(
    tx: Connection,
    ended: Collection[UUID],
    locked: Mapping[UUID, Attempt],
    learnt: Mapping[UUID, CallFacts],
    policies: Mapping[UUID, Effective],
) -> None:
    """Of the ended attempts, those that a carrier accepted and ended: a refused one was no call."""
    calls = list(_calls(ended, locked, learnt, policies))
    abandoned = await abandonment.count(tx, calls)
    for call in calls:
        if call.by_person:
            metrics.CALLS_BY_PERSON.inc()
    _count_abandoned(abandoned)


async def count_late(
    tx: Connection, locked: Mapping[UUID, Attempt], learnt: Mapping[UUID, CallFacts]
) -> None:
    """Of calls that had ended before: no agent is proven now where it was unknown."""
    missed = [
        attempt_id
        for attempt_id, facts in learnt.items()
        if locked[attempt_id].facts.agent is Agent.UNKNOWN
        and _was_abandoned(call_evidence.verdict_of(locked[attempt_id], facts))
    ]
    _count_abandoned(await abandonment.count_late(tx, missed))


async def correct(tx: Connection, seen: Iterable[Attempt]) -> None:
    """Of calls that had ended before: their agents reported after the carrier, so there was one. Safe to repeat."""
    corrections = []
    for attempt in seen:
        if attempt.report is None or attempt.facts.state is not AttemptState.ENDED:
            continue
        now = call_evidence.verdict_of(attempt, call_evidence.with_agent(attempt, attempt.facts))
        if _was_abandoned(call_evidence.verdict_without_report(attempt)) and not _was_abandoned(now):
            by_machine = now.outcome is Outcome.VOICEMAIL
            corrections.append(Correction(attempt.id, attempt.tenant, attempt.campaign_id, by_machine))
    await abandonment.correct(tx, corrections)


async def correct_revised(tx: Connection, revised: Iterable[Attempt]) -> None:
    """Of leads whose outcome such a report changes, which happens once: a machine had answered, and was counted as a
    person."""
    machines = [
        Correction(attempt.id, attempt.tenant, attempt.campaign_id, by_machine=True)
        for attempt in revised
        if call_evidence.verdict_of(attempt, attempt.facts).outcome is Outcome.VOICEMAIL
        and _was_served(call_evidence.verdict_without_report(attempt))
    ]
    await abandonment.correct(tx, machines, are_served=True)


def _calls(
    ended: Collection[UUID],
    locked: Mapping[UUID, Attempt],
    learnt: Mapping[UUID, CallFacts],
    policies: Mapping[UUID, Effective],
) -> Iterator[EndedCall]:
    for attempt_id in ended:
        attempt, facts = locked[attempt_id], learnt.get(attempt_id)
        if facts is None or facts.state is not AttemptState.ENDED or attempt.lead_id is None:
            continue
        verdict = call_evidence.verdict_of(attempt, facts)
        was_answered = facts.answered_at is not None
        yield EndedCall(
            attempt_id,
            attempt.tenant,
            attempt.campaign_id,
            attempt.lead_id,
            attempt.phone,
            was_answered=was_answered,
            by_person=was_answered and verdict.outcome is not Outcome.VOICEMAIL,
            without_agent=_was_abandoned(verdict),
            threshold_s=policies[attempt_id].abandon_threshold_s,
        )


def _count_abandoned(abandoned: Iterable[bool]) -> None:
    for overdialled in abandoned:
        metrics.CALLS_ABANDONED.labels("overdialled" if overdialled else "no_agent").inc()


def _was_served(verdict: CallVerdict) -> bool:
    """Counted as a person who had an agent."""
    return verdict.outcome is not Outcome.VOICEMAIL and not _was_abandoned(verdict)


def _was_abandoned(verdict: CallVerdict) -> bool:
    return verdict.outcome is Outcome.NO_AGENT
