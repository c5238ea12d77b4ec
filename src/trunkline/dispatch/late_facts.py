"""Late facts: a call that the checker had written off was placed after all.

If its lead has no newer attempt and has not ended, or ended only because this call's fate was unknown, the call is
reattached: the lead is being called, the call holds a channel again, and its end decides like any other. Beside a newer
attempt, beside another call to the same person, or for a lead that has ended otherwise, it may not become live: its
facts are stored, and it is hung up or, where the carrier cannot do that, refused when it is answered. Both raise an
alarm, because a person may have been called twice.
"""

import random
from collections.abc import Mapping
from typing import Literal
from uuid import UUID

from trunkline.control.raising import raise_alarm
from trunkline.model import CallFacts, Outcome
from trunkline.states import LIVE, WRITTEN_OFF, AttemptState, LeadStatus
from trunkline.store import attempts, hang_ups
from trunkline.store.attempts import Attempt
from trunkline.store.database import Connection, Database
from trunkline.telemetry import get_logger
from trunkline.value import replace

log = get_logger(__name__)

# Subjects of the alarm `late_fact`, as stored: `adopted` is a call that was reattached.
LateKind = Literal["adopted", "hung_up"]

# Another call may take the channel that we just saw free.
CHANNEL_TRIES = 3
# Channel numbers that no number has, so no other call takes them. A live call without a channel would never be checked.
SPARE_CHANNELS = range(1_000_000, 2**31 - 1)


def may_be_reattached(attempt: Attempt) -> bool:
    """Whether the call may be its lead's again: no newer attempt calls the lead, and it has not ended otherwise."""
    has_ended = attempt.lead_status is LeadStatus.FINISHED and attempt.lead_outcome != Outcome.UNKNOWN.value
    return attempt.is_newest and not attempt.is_cancelled and not has_ended


def without_going_live(attempt: Attempt, facts: CallFacts) -> CallFacts:
    """The facts, without the call becoming live. When and why it was written off stays, until it has ended."""
    before = attempt.facts
    return replace(
        facts,
        state=before.state,
        ended_at=before.ended_at,
        end_reason=before.end_reason,
        duration_s=before.duration_s,
    )


async def reattach(database: Database, attempt_id: UUID, call_id: str) -> bool:
    """A written-off call was answered: it is its lead's call again. Under the lead's lock, so that no newer attempt
    begins beside it. False: there is one, or the lead has ended otherwise."""
    async with database.transaction() as tx:
        locked = await attempts.lock(tx, [attempt_id])
        attempt = locked.get(attempt_id)
        if attempt is None or not may_be_reattached(attempt) or attempt.facts.call_id not in (None, call_id):
            return False
        if attempt.facts.state not in WRITTEN_OFF:
            return attempt.facts.state in LIVE
        await attempts.reattach_leads(tx, [attempt])
        # The reason and the time of the writing-off are no facts of the call.
        facts = replace(
            attempt.facts,
            state=AttemptState.ANSWERED,
            call_id=call_id,
            answered_at=attempt.facts.answered_at or attempt.read_at,
            ended_at=None,
            end_reason=None,
            duration_s=None,
        )
        if not await attempts.apply_facts(tx, {attempt_id: facts}):
            return False
        await _hold_again(tx, attempt_id)
        log.error("call.reappeared_late", attempt_id=str(attempt_id), state=facts.state.value)
        await report(tx, {attempt_id: "adopted"})
    return True


async def follow(
    tx: Connection, locked: Mapping[UUID, Attempt], applied: Mapping[UUID, CallFacts]
) -> dict[UUID, LateKind]:
    """Give reattached calls a channel, and have the others hung up. Returns what was done with each late call."""
    late: dict[UUID, LateKind] = {}
    for attempt_id, facts in applied.items():
        attempt = locked[attempt_id]
        if attempt.facts.state not in WRITTEN_OFF:
            continue
        log.error("call.reappeared_late", attempt_id=str(attempt_id), state=facts.state.value)
        if facts.state in LIVE:
            await _hold_again(tx, attempt_id)
        elif facts.state in WRITTEN_OFF:
            await hang_ups.request(tx, [attempt_id])
        # One that has ended already counts as reattached if its lead has no other call and no other end: it decides.
        is_reattached = facts.state not in WRITTEN_OFF and may_be_reattached(attempt)
        late[attempt_id] = "adopted" if is_reattached else "hung_up"
    return late


async def report(tx: Connection, late: Mapping[UUID, LateKind]) -> None:
    """Last in its transaction, as all alarms are. By kind: a reattached call had no other call beside it."""
    for kind in sorted(set(late.values())):
        attempt_ids = [str(each) for each, attempt_kind in late.items() if attempt_kind == kind]
        await raise_alarm(tx, "late_fact", kind, {"attempts": attempt_ids})


async def _hold_again(tx: Connection, attempt_id: UUID) -> None:
    for _ in range(CHANNEL_TRIES):
        try:
            async with tx.transaction():
                await attempts.hold_again(tx, attempt_id)
        except attempts.TAKEN:
            continue
        return
    # No secret: it only keeps two calls of one number off the same channel.
    await attempts.hold_again(tx, attempt_id, random.choice(SPARE_CHANNELS))  # noqa: S311  no secret
