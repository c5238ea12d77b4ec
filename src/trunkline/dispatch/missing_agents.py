"""Answered calls without an agent: counts them as abandoned, raises alarms, and stops dialling for a while for a
merchant to which it happens again and again.

Calls are counted in the transaction that settles them, so that a rate over 30 days misses none. Every answered call
without an agent counts, whether overdialling caused it or not. The circuit breaker is written with the end of the call
that trips it, in the same transaction, and read by intents. The first answered call since then without proof that it
had no agent releases it. Inbound calls do not count.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from uuid import UUID

from trunkline.control.raising import clear_alarm, raise_alarm
from trunkline.dispatch.call_evidence import with_agent
from trunkline.leads.calling_policy import Effective
from trunkline.leads.outcomes import CallVerdict, verdict
from trunkline.model import Agent, CallFacts, Finish, Outcome
from trunkline.states import AttemptState
from trunkline.store import abandonment, brakes
from trunkline.store.abandonment import Correction, EndedCall
from trunkline.store.attempts import Attempt
from trunkline.store.brakes import BrakeRule
from trunkline.store.database import Connection
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

RULE = BrakeRule()
# An alarm names at most this many attempts; the API lists all leads.
NAMED_MAX = 20


async def follow(
    tx: Connection,
    locked: Mapping[UUID, Attempt],
    applied: Mapping[UUID, CallFacts],
    ends: Sequence[tuple[Attempt, Finish]],
) -> None:
    """Last in its transaction: breakers and alarms are rows that many transactions share."""
    concluded = [
        (locked[each], facts.agent)
        for each, facts in applied.items()
        if facts.agent is not None and facts.agent is not locked[each].facts.agent
    ]
    for attempt, agent in concluded:
        if attempt.facts.agent is not None:
            continue  # counted before, by the earlier evidence
        metrics.ANSWERED_CALLS.labels(attempt.carrier, agent.value).inc()
    missed = [attempt for attempt, agent in concluded if agent is Agent.NONE]
    for attempt in missed:
        metrics.ANSWERED_WITHOUT_AGENT.labels(attempt.carrier).inc()
        log.error("call.answered_without_agent", attempt_id=str(attempt.id), lead_id=str(attempt.lead_id))
    # An unknown agent counts too: where agents never prove themselves, nothing else would ever release the breaker.
    proven = {
        attempt.merchant_id for attempt, agent in concluded if attempt.is_probe and agent is not Agent.NONE
    }
    for merchant_id in await brakes.release(tx, proven) if proven else ():
        log.info("no_agent_brake.released", merchant_id=merchant_id)
        await clear_alarm(tx, "no_agent_brake", merchant_id)
    if missed:
        await _raise_alarms(tx, missed, ends)


async def _raise_alarms(
    tx: Connection, missed: Sequence[Attempt], ends: Sequence[tuple[Attempt, Finish]]
) -> None:
    ended = [attempt for attempt, finish in ends if finish.outcome is Outcome.NO_AGENT]
    tripped = await brakes.trip(tx, {attempt.merchant_id for attempt in missed}, RULE)
    for merchant_id, attempts in sorted(_by_merchant(missed).items()):
        detail = {"attempts": [str(attempt.id) for attempt in attempts[:NAMED_MAX]]}
        await raise_alarm(tx, "answered_without_agent", merchant_id, detail, attempts[0].tenant)
    for merchant_id, attempts in sorted(_by_merchant(ended).items()):
        detail = {"leads": [str(attempt.lead_id) for attempt in attempts[:NAMED_MAX]]}
        await raise_alarm(tx, "lead_ended_no_agent", merchant_id, detail, attempts[0].tenant)
    owners = {attempt.merchant_id: attempt.tenant for attempt in missed}
    for brake in sorted(tripped, key=lambda each: each.merchant_id):
        log.error("no_agent_brake.tripped", merchant_id=brake.merchant_id, without=brake.without)
        counted = {"answered": brake.answered, "without_agent": brake.without}
        brake_detail = {**counted, "stops_until": brake.stops_until.isoformat()}
        await raise_alarm(tx, "no_agent_brake", brake.merchant_id, brake_detail, owners[brake.merchant_id])


def _by_merchant(attempts: Iterable[Attempt]) -> dict[str, list[Attempt]]:
    groups: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        groups[attempt.merchant_id].append(attempt)
    return groups


async def count(
    tx: Connection,
    ended: Collection[UUID],
    locked: Mapping[UUID, Attempt],
    learnt: Mapping[UUID, CallFacts],
    policies: Mapping[UUID, Effective],
) -> None:
    """Of the ended attempts, those that a carrier accepted and ended: a refused one was no call."""
    calls = []
    for attempt_id in ended:
        attempt, facts = locked[attempt_id], learnt.get(attempt_id)
        if facts is None or facts.state is not AttemptState.ENDED or attempt.lead_id is None:
            continue
        concluded, was_answered = verdict(facts, attempt.report), facts.answered_at is not None
        calls.append(
            EndedCall(
                attempt_id,
                attempt.tenant,
                attempt.campaign_id,
                attempt.lead_id,
                attempt.phone,
                was_answered=was_answered,
                by_person=was_answered and concluded.outcome is not Outcome.VOICEMAIL,
                without_agent=concluded.outcome is Outcome.NO_AGENT,
                threshold_s=policies[attempt_id].abandon_threshold_s,
            )
        )
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
        and _was_abandoned(verdict(facts, locked[attempt_id].report))
    ]
    _count_abandoned(await abandonment.count_late(tx, missed))


async def correct(tx: Connection, seen: Iterable[Attempt]) -> None:
    """Of calls that had ended before: their agents reported after the carrier, so there was one. Safe to repeat."""
    corrections = []
    for attempt in seen:
        if attempt.report is None or attempt.facts.state is not AttemptState.ENDED:
            continue
        now = verdict(with_agent(attempt, attempt.facts), attempt.report)
        if _was_abandoned(verdict(attempt.facts)) and not _was_abandoned(now):
            by_machine = now.outcome is Outcome.VOICEMAIL
            corrections.append(Correction(attempt.id, attempt.tenant, attempt.campaign_id, by_machine))
    await abandonment.correct(tx, corrections)


async def correct_revised(tx: Connection, revised: Iterable[Attempt]) -> None:
    """Of leads whose outcome such a report changes, which happens once: a machine had answered, and was counted as a
    person."""
    machines = [
        Correction(attempt.id, attempt.tenant, attempt.campaign_id, by_machine=True)
        for attempt in revised
        if verdict(attempt.facts, attempt.report).outcome is Outcome.VOICEMAIL
        and _was_served(verdict(attempt.facts))
    ]
    await abandonment.correct(tx, machines, are_served=True)


def _count_abandoned(abandoned: Iterable[bool]) -> None:
    for overdialled in abandoned:
        metrics.CALLS_ABANDONED.labels("overdialled" if overdialled else "no_agent").inc()


def _was_served(concluded: CallVerdict) -> bool:
    """Counted as a person who had an agent."""
    return concluded.outcome is not Outcome.VOICEMAIL and not _was_abandoned(concluded)


def _was_abandoned(concluded: CallVerdict) -> bool:
    return concluded.outcome is Outcome.NO_AGENT
