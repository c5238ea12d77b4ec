"""Answered calls without an agent: counts them, raises alarms, and stops dialling for a while for a merchant to which
it happens again and again.

The circuit breaker is written with the end of the call that trips it, in the same transaction, and read by intents. The
first answered call since then without proof that it had no agent releases it. Inbound calls do not count.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from trunkline.control.raising import clear_alarm, raise_alarm
from trunkline.model import Agent, CallFacts, Finish, Outcome
from trunkline.store import brakes
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
    probes = [(attempt, agent) for attempt, agent in concluded if attempt.is_probe]
    await _release(tx, {attempt.merchant_id for attempt, agent in probes if agent is not Agent.NONE})
    if missed:
        await _raise_alarms(tx, missed, ends)


async def _release(tx: Connection, merchant_ids: set[str]) -> None:
    if not merchant_ids:
        return
    for merchant_id in await brakes.release(tx, merchant_ids):
        log.info("no_agent_brake.released", merchant_id=merchant_id)
        await clear_alarm(tx, "no_agent_brake", merchant_id)


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
