"""The promises, checked from the carrier's ledger, the pods' records and SQL, never from what the platform believes."""

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from uuid import UUID

from tests.support.hurry import hurrying
from tests.support.installation import Installation
from tests.support.waiting import eventually
from trunkline.bus import channels, epoch
from trunkline.errors import BusUnavailable
from trunkline.states import ATTEMPT_MOVES, LEAD_MOVES, AttemptState, LeadStatus
from trunkline.telephony.simulator.ledger import Dial

# Whoever sees one of these knows why nobody can say what became of the call; each raises an alarm.
ALARMING = frozenset({"call_list_unavailable", "two_candidates"})
# How leads end whose last call was answered, and was not.
ANSWERED = frozenset({"ANSWERED", "NO_AGENT", "EARLY_HANGUP", "VOICEMAIL", "TRANSFERRED"})
UNANSWERED = frozenset({"NO_ANSWER", "BUSY"})
# Where a record of `leads` has its due time: version, place, flow, priority, due, …
_DUE_MS = 4


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of attempts and leads, once nothing moves any more."""

    lead_of: dict[UUID, UUID]
    state_of: dict[UUID, AttemptState]
    outcome_of: dict[UUID, tuple[str | None, str | None]]


async def keeps_its_promises(place: Installation, leads: Iterable[UUID], *, timeout_s: float = 60) -> None:
    """Wait for the end of everything, then look at what truly happened."""
    leads = list(leads)
    await _rest(place, timeout_s)
    facts = await _facts(place)
    broken = [
        *_one_dial_per_attempt(place),
        *_one_live_call_per_lead(place, facts),
        *_no_number_over_its_lines(place),
        *_no_pod_with_two_calls(place),
        *_every_lead_ended(facts, leads),
        *_rejected_means_not_dialled(place, facts),
        *_every_dial_is_accounted_for(place, facts),
        *await _recorded_as_the_ledger_tells(place, facts),
        *await _no_state_went_back(place),
        *await _valkey_is_the_projection(place),
    ]
    assert not broken, "\n".join(broken) + "\n" + place.tails()


async def _rest(place: Installation, timeout_s: float) -> None:
    async def is_over() -> bool:
        left = await place.answers(
            "SELECT (SELECT count(*) FROM leads WHERE status <> 'FINISHED')"
            " + (SELECT count(*) FROM attempts WHERE holds_channel)"
            " + (SELECT count(*) FROM mailboxes WHERE processing_status <> 'idle')"
        )
        return left == 0 and place.carrier.ledger.live() == 0

    async with hurrying(place):
        try:
            await eventually(is_over, timeout_s=timeout_s, what="everything has come to an end")
            await place.carrier.idle()  # webhooks that are still under way
            await eventually(is_over, timeout_s=timeout_s, what="everything has come to an end, again")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{await _what_is_left(place)}\n{place.tails()}") from None


async def _what_is_left(place: Installation) -> str:
    parts = []
    for what, sql in {
        "leads": "SELECT status, due_at - now() AS due_in, version, attempt_count, id FROM leads"
        " WHERE status <> 'FINISHED' LIMIT 8",
        "attempts": "SELECT id, lead_id, state, end_reason, carrier_call_id, intent_at - now() AS age,"
        " next_check_at - now() AS check_in, doubt_checks, dialer FROM attempts WHERE holds_channel LIMIT 8",
        "mailboxes": "SELECT key, processing_status, failures, last_error, claimable_at - now() AS in_s"
        " FROM mailboxes WHERE processing_status <> 'idle' LIMIT 8",
        "why": "SELECT reason, subject, count(*), max(last_at) - now() AS last FROM decisions GROUP BY 1, 2",
    }.items():
        parts.append(what)
        parts += [f"  {dict(row)}" for row in await place.rows(sql)]
    parts.append(f"carrier: {place.carrier.ledger.live()} live of {len(place.carrier.ledger.dials)}")
    return "\n".join(parts)


async def _facts(place: Installation) -> Facts:
    attempts = await place.rows("SELECT id, lead_id, state FROM attempts")
    leads = await place.rows("SELECT id, outcome, outcome_reason FROM leads WHERE status = 'FINISHED'")
    return Facts(
        {row["id"]: row["lead_id"] for row in attempts},
        {row["id"]: AttemptState(row["state"]) for row in attempts},
        {row["id"]: (row["outcome"], row["outcome_reason"]) for row in leads},
    )


def _one_dial_per_attempt(place: Installation) -> list[str]:
    return [f"I1: {double}" for double in place.carrier.ledger.double_dials()]


def _one_live_call_per_lead(place: Installation, facts: Facts) -> list[str]:
    of_lead: dict[UUID, list[Dial]] = defaultdict(list)
    for dial in place.carrier.ledger.dials:
        if dial.attempt is not None and (lead := facts.lead_of.get(UUID(dial.attempt))):
            of_lead[lead].append(dial)
    broken = []
    for lead, dials in of_lead.items():
        dials.sort(key=lambda dial: dial.started_at)
        for first, second in pairwise(dials):
            if first.ended_at is None or first.ended_at > second.started_at:
                broken.append(f"I1: lead {lead} had two calls at once: {first} {second}")
    return broken


def _no_number_over_its_lines(place: Installation) -> list[str]:
    return [f"I2: {over}" for over in place.carrier.ledger.over_capacity(place.numbers)]


def _no_pod_with_two_calls(place: Installation) -> list[str]:
    return [f"I3: {overlap}" for overlap in place.pods.records().overlaps]


def _every_lead_ended(facts: Facts, leads: Iterable[UUID]) -> list[str]:
    broken = []
    for lead in leads:
        outcome, reason = facts.outcome_of.get(lead, (None, None))
        if outcome is None or (outcome == "UNKNOWN" and reason not in ALARMING):
            broken.append(f"I4: lead {lead} ended as {outcome} ({reason})")
    return broken


def _rejected_means_not_dialled(place: Installation, facts: Facts) -> list[str]:
    """`rejected` and `absent` are our word that nobody's phone rang: the next attempt stands on it."""
    never = (AttemptState.REJECTED, AttemptState.ABSENT)
    return [
        f"I1: the carrier dialled an attempt that is {facts.state_of[UUID(dial.attempt)]}: {dial}"
        for dial in place.carrier.ledger.dials
        if dial.attempt and facts.state_of.get(UUID(dial.attempt)) in never
    ]


def _every_dial_is_accounted_for(place: Installation, facts: Facts) -> list[str]:
    return [
        f"I4: a call that nobody knows: {dial}"
        for dial in place.carrier.ledger.dials
        if dial.attempt is None or UUID(dial.attempt) not in facts.state_of
    ]


async def _recorded_as_the_ledger_tells(place: Installation, facts: Facts) -> list[str]:
    """Whoever answered was answered by our records too, nobody who had an agent counts as one who had none, and a lead
    ended as its last call did."""
    rows = {
        row["id"]: row for row in await place.rows("SELECT id, intent_at, answered_at, agent FROM attempts")
    }
    served = {record.call_sid for record in place.pods.records().calls}
    last: dict[UUID, tuple[datetime, Dial]] = {}
    broken = []
    for dial in place.carrier.ledger.dials:
        attempt = UUID(dial.attempt) if dial.attempt else None
        if attempt is None or facts.state_of.get(attempt) is not AttemptState.ENDED:
            continue
        row, lead = rows[attempt], facts.lead_of[attempt]
        if (row["answered_at"] is None) is not (dial.answered_at is None):
            broken.append(f"I9: attempt {attempt} was answered at {row['answered_at']}: {dial}")
        if row["agent"] == ("none" if dial.call_id in served else "joined"):
            broken.append(f"I9: the agent of attempt {attempt} is {row['agent']}: {dial}")
        if lead not in last or last[lead][0] < row["intent_at"]:
            last[lead] = row["intent_at"], dial
    for lead, (_, dial) in last.items():
        outcome, reason = facts.outcome_of.get(lead, (None, None))
        if outcome in (UNANSWERED if dial.answered_at is not None else ANSWERED):
            broken.append(f"I9: lead {lead} ended as {outcome} ({reason}): {dial}")
    return broken


async def _no_state_went_back(place: Installation) -> list[str]:
    moves = await place.rows("SELECT * FROM seen_moves WHERE before IS NOT NULL ORDER BY at")
    statuses = await place.rows("SELECT * FROM seen_statuses")
    return [
        *(
            f"I7: attempt {row['attempt_id']} went from {row['before']} to {row['after']}"
            for row in moves
            if AttemptState(row["after"]) not in ATTEMPT_MOVES[AttemptState(row["before"])]
            # Our own attempts, whose COMMIT was not answered, are written as not sent.
            and (row["before"], row["after"]) != ("in_doubt", "rejected")
        ),
        *(
            f"I7: lead {row['lead_id']} went from {row['before']} to {row['after']}"
            for row in statuses
            if LeadStatus(row["after"]) not in LEAD_MOVES[LeadStatus(row["before"])]
        ),
    ]


async def _valkey_is_the_projection(place: Installation) -> list[str]:
    """At rest nobody holds a channel and nobody waits: after a reconciliation Valkey says the same.

    A lead that was called from Postgres while Valkey was away may stay until its old due time, and then goes by itself.
    """
    seen: dict[str, object] = {}

    async def nothing_is_left() -> bool:
        try:
            await epoch.ensure(place.bus)
            seen["holders"] = [str(h.attempt_id) for h in await channels.holders(place.bus)]
            leads: dict[str, str] = await place.bus.read(place.bus.client.hgetall(place.bus.projection.leads))
            live: dict[str, str] = await place.bus.read(place.bus.client.hgetall(place.bus.projection.live))
        except BusUnavailable as error:
            place.bus.epoch = 0
            seen["error"] = str(error)
            return False
        now_ms = time.time() * 1000
        waiting = {
            lead: record for lead, record in leads.items() if float(record.split("|")[_DUE_MS]) <= now_ms
        }
        seen.update(leads=waiting, live=live)
        return not (seen["holders"] or waiting or live)

    try:
        await eventually(nothing_is_left, timeout_s=15, what="Valkey says the same as Postgres")
    except AssertionError:
        return [f"I6: Valkey still has {seen}"]
    return []
