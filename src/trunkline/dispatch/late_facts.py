"""Late facts: a call that we had given up on was made after all.

If its lead has no newer attempt and has not ended, or ended only because nobody knew what became of this call, it is
adopted: the lead is being called, the call has a line again, and its end decides like any other. Beside a newer
attempt, beside another call to the same person, or for a lead that has ended otherwise, it may not become live: what is
known of it is stored, and it is hung up, or where the carrier cannot be asked for that, refused when it is answered.
Both raise an alarm, because somebody may have been rung twice.
"""

import random
from collections.abc import Iterable, Mapping
from typing import Literal
from uuid import UUID

from trunkline.control.raising import raise_alarm
from trunkline.leads.fold import found
from trunkline.model import CallFacts, Outcome
from trunkline.states import GIVEN_UP, LIVE, AttemptState, LeadStatus
from trunkline.store import attempts, hang_ups
from trunkline.store.attempts import Attempt
from trunkline.store.database import Connection, Database
from trunkline.telemetry import get_logger
from trunkline.value import replace

log = get_logger(__name__)

LateKind = Literal["adopted", "hung_up"]

# Somebody may take the line that we just saw free.
LINE_TRIES = 3
# Lines that no number has, so nobody else asks for them. A live call without a line would never be looked at again.
FAR_LINES = range(1_000_000, 2**31 - 1)


def has_surfaced(attempt: Attempt, facts: CallFacts) -> bool:
    return attempt.facts.state in GIVEN_UP and facts.state not in GIVEN_UP


def may_be_adopted(attempt: Attempt) -> bool:
    """Whether its lead may be called by it: nobody calls it by now, and it has not ended otherwise."""
    has_ended = attempt.lead_status is LeadStatus.FINISHED and attempt.lead_outcome != Outcome.UNKNOWN.value
    return attempt.is_newest and not attempt.is_cancelled and not has_ended


def beside(attempt: Attempt, facts: CallFacts) -> CallFacts:
    """What is known, without the call becoming live. When and why we gave it up stays, until it has ended."""
    before = attempt.facts
    return replace(
        facts,
        state=before.state,
        ended_at=before.ended_at,
        end_reason=before.end_reason,
        duration_s=before.duration_s,
    )


async def adopt(database: Database, attempt_id: UUID, call_id: str) -> bool:
    """A call that was given up has been answered: its lead is called with it again. Under the lead's lock, so that no
    newer attempt begins beside it. False: one has, or the lead has ended otherwise."""
    async with database.transaction() as tx:
        locked = await attempts.lock(tx, [attempt_id])
        attempt = locked.get(attempt_id)
        if attempt is None or not may_be_adopted(attempt) or attempt.facts.call_id not in (None, call_id):
            return False
        if attempt.facts.state not in GIVEN_UP:
            return attempt.facts.state in LIVE
        await take_up(tx, [attempt])
        facts = replace(
            found(attempt.facts),
            state=AttemptState.ANSWERED,
            call_id=call_id,
            answered_at=attempt.facts.answered_at or attempt.read_at,
        )
        try:
            async with tx.transaction():
                await attempts.apply_facts(tx, {attempt_id: facts})
        except attempts.TAKEN:
            return False
        await _hold_again(tx, attempt_id)
        log.error("call.surfaced_late", attempt_id=str(attempt_id), state=facts.state.value)
        await report(tx, {attempt_id: "adopted"})
    return True


async def take_up(tx: Connection, surfaced: Iterable[Attempt]) -> None:
    """Let the leads of adopted calls be called by them."""
    await attempts.take_up(tx, [attempt for attempt in surfaced if attempt.lead_id])


async def follow(
    tx: Connection, locked: Mapping[UUID, Attempt], applied: Mapping[UUID, CallFacts]
) -> dict[UUID, LateKind]:
    """Give adopted calls a line, and have the others hung up; what became of the calls that were late."""
    late = [each for each in applied if locked[each].facts.state in GIVEN_UP]
    for attempt_id in late:
        state = applied[attempt_id].state
        log.error("call.surfaced_late", attempt_id=str(attempt_id), state=state.value)
        if state in LIVE:
            await _hold_again(tx, attempt_id)
        elif state in GIVEN_UP:
            await hang_ups.want(tx, [attempt_id])
    return {each: _kind(locked[each], applied[each]) for each in late}


def _kind(attempt: Attempt, facts: CallFacts) -> LateKind:
    """One that is over already was adopted if the lead has no other call and no other end: then it decides."""
    is_kept = facts.state not in GIVEN_UP and may_be_adopted(attempt)
    return "adopted" if is_kept else "hung_up"


async def report(tx: Connection, late: Mapping[UUID, LateKind]) -> None:
    """Last in its transaction, as all alarms are. By kind: beside an adopted call there was no other one."""
    for kind in sorted(set(late.values())):
        told = [str(each) for each, what in late.items() if what == kind]
        await raise_alarm(tx, "late_fact", kind, {"attempts": told})


async def _hold_again(tx: Connection, attempt_id: UUID) -> None:
    for _ in range(LINE_TRIES):
        try:
            async with tx.transaction():
                await attempts.hold_again(tx, attempt_id)
        except attempts.TAKEN:
            continue
        return
    # Not a secret: two calls of one number must only not meet on one line.
    await attempts.hold_again(tx, attempt_id, random.choice(FAR_LINES))  # noqa: S311  no secret
