"""Folds the events of calls into facts, through the mailbox `call`: one mailbox per attempt, many in one transaction.

When a call has ended, what becomes of its lead is decided in the same transaction, and its channel is released in
Valkey after the commit: released earlier, the next grant of that channel would be refused by Postgres.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from uuid import UUID

from trunkline.bus.connection import Bus
from trunkline.dispatch.settlement import Settlement, settle
from trunkline.leads import policy
from trunkline.leads.fold import fold
from trunkline.mailbox.worker import AfterCommit, Batch, Write
from trunkline.model import CallFacts, Decision
from trunkline.states import ATTEMPT_MOVES, LIVE, AttemptState
from trunkline.store import attempts
from trunkline.store.attempts import Attempt
from trunkline.store.database import Connection
from trunkline.telemetry import get_logger

log = get_logger(__name__)

KIND = "call"

# Told the carrier's ids of calls that are over, after the commit.
OnEnded = Callable[[list[str]], Awaitable[None]]


class CallFold:
    """The handler of kind `call`. The key of a mailbox is the attempt id."""

    kind = KIND

    def __init__(self, bus: Bus, on_ended: OnEnded):
        self._bus = bus
        self._on_ended = on_ended

    async def handle(self, batch: Batch) -> Write:
        return partial(self._write, batch)

    async def _write(self, batch: Batch, tx: Connection) -> AfterCommit:
        locked = await attempts.lock(tx, [UUID(key) for key in batch])
        changed = {
            attempt.id: facts
            for attempt in locked.values()
            if (facts := _facts(attempt, batch)) != attempt.facts
        }
        await attempts.apply_facts(tx, changed)
        settlement = await settle(tx, locked, _decisions(locked, changed))
        ended = [
            facts.call_id for facts in changed.values() if facts.state is AttemptState.ENDED and facts.call_id
        ]
        return partial(self._follow_up, settlement, ended)

    async def _follow_up(self, settlement: Settlement, ended: list[str]) -> None:
        await settlement.tell(self._bus)
        await self._on_ended(ended)


def _facts(attempt: Attempt, batch: Batch) -> CallFacts:
    facts = fold(attempt.facts, (event.payload for event in batch[str(attempt.id)]))
    if facts.state in LIVE and attempt.facts.state not in LIVE and not attempt.is_newest:
        # A call that we had given up on surfaced beside a newer attempt: it may not become live again.
        log.error("call.surfaced_late", attempt_id=str(attempt.id), lead_id=str(attempt.lead_id))
        return attempt.facts
    return facts


def _decisions(
    locked: Mapping[UUID, Attempt], changed: Mapping[UUID, CallFacts]
) -> list[tuple[UUID, Decision]]:
    return [
        (attempt_id, policy.after_call(facts.answered_at, facts.end_reason, locked[attempt_id].budget))
        for attempt_id, facts in changed.items()
        if facts.state is AttemptState.ENDED
        and AttemptState.ENDED in ATTEMPT_MOVES[locked[attempt_id].facts.state]
    ]
