"""Late facts: a call that we had given up on was made after all.

If its lead has no newer attempt, it is adopted: the lead is being called, the call has a line again, and its end
decides like any other. Beside a newer attempt, or another call to the same person, it may not become live: what is
known of it is stored, and it is hung up. Both raise an alarm, because somebody may have been rung twice.
"""

import random
from collections.abc import Iterable, Mapping
from uuid import UUID

from trunkline.model import CallFacts
from trunkline.states import LIVE, AttemptState
from trunkline.store import attempts, hang_ups
from trunkline.store.attempts import Attempt
from trunkline.store.database import Connection
from trunkline.telemetry import get_logger
from trunkline.value import replace

log = get_logger(__name__)

GIVEN_UP = frozenset({AttemptState.ABSENT, AttemptState.UNKNOWN})
# Somebody may take the line that we just saw free.
LINE_TRIES = 3
# Lines that no number has, so nobody else asks for them. A live call without a line would never be looked at again.
FAR_LINES = range(1_000_000, 2**31 - 1)


def has_surfaced(attempt: Attempt, facts: CallFacts) -> bool:
    return attempt.facts.state in GIVEN_UP and facts.state not in GIVEN_UP


def beside(attempt: Attempt, facts: CallFacts) -> CallFacts:
    """What is known, without the call becoming live."""
    return replace(facts, state=attempt.facts.state)


async def take_up(tx: Connection, surfaced: Iterable[Attempt]) -> None:
    """Let the leads of adopted calls be called by them."""
    await attempts.take_up(tx, [attempt.lead_id for attempt in surfaced if attempt.lead_id])


async def follow(
    tx: Connection, locked: Mapping[UUID, Attempt], applied: Mapping[UUID, CallFacts]
) -> list[UUID]:
    """Give adopted calls a line, and have the others hung up; which calls were late."""
    late = [each for each in applied if locked[each].facts.state in GIVEN_UP]
    for attempt_id in late:
        state = applied[attempt_id].state
        log.error("call.surfaced_late", attempt_id=str(attempt_id), state=state.value)
        if state in LIVE:
            await _hold_again(tx, attempt_id)
        elif state in GIVEN_UP:
            await hang_ups.want(tx, [attempt_id])
    return late


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
