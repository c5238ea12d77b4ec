"""Intent before effect: an attempt is committed before a byte leaves for the carrier.

One transaction per batch (`intent_batch`). The partial unique indexes of `attempts` are the guard of the promise,
Valkey's grant is a hint. Only what is returned may be sent, and every grant that came to nothing has a reason. A COMMIT
that was not answered may have gone through: nothing of it is sent, and its attempts are disowned.
"""

from collections.abc import Mapping, Sequence
from uuid import UUID

from trunkline.dispatch.gates_limits import NO_SLOTS
from trunkline.dispatch.intent_batch import IntentBatch, Rules
from trunkline.dispatch.refusals import GateRefusal, Refusal, RefusalReason
from trunkline.model import Entry, Grant, Intent, Slot
from trunkline.store import dispatch, lead_edits
from trunkline.store.database import UNAVAILABLE, Database
from trunkline.store.dispatch import CONTENDED, UNACCEPTABLE, NewAttempt
from trunkline.telemetry import get_logger, metrics
from trunkline.value import Value

log = get_logger(__name__)

LOCK_TIMEOUT_MS = 500
# Alone, after its batch failed: somebody held a lock for half a second already, and others are waiting.
LOCK_TIMEOUT_ALONE_MS = 50


class Intents(Value, frozen=True):
    """What may be sent; the grants that came to nothing; and attempts whose COMMIT was not answered: they are not sent,
    and have to be disowned."""

    committed: tuple[Intent, ...] = ()
    refused: tuple[Refusal, ...] = ()
    lost: tuple[NewAttempt, ...] = ()
    # Proposed slots that Postgres says are somebody else's, or gone.
    lost_slots: tuple[Slot, ...] = ()

    def __add__(self, other: "Intents") -> "Intents":
        return Intents(
            self.committed + other.committed,
            self.refused + other.refused,
            self.lost + other.lost,
            self.lost_slots + other.lost_slots,
        )


async def intend(
    database: Database,
    grants: Sequence[Grant],
    dialer: str,
    rules: Rules | None = None,
    slots: Mapping[UUID, Slot] = NO_SLOTS,
) -> Intents:
    """One transaction for all; if a lock or a single lead makes it fail, one for each, so that nobody is held up."""
    rules = rules or Rules()
    if len(grants) == 1:
        return await _intend_alone(database, grants[0], dialer, rules, LOCK_TIMEOUT_MS, slots)
    try:
        return await _intend(database, grants, dialer, rules, LOCK_TIMEOUT_MS, slots)
    except (*CONTENDED, *UNACCEPTABLE) as error:
        log.warning("intent.batch_failed", grants=len(grants), error=str(error))
    intents = Intents()
    for place, grant in enumerate(grants):
        try:
            intents += await _intend_alone(database, grant, dialer, rules, LOCK_TIMEOUT_ALONE_MS, slots)
        except Exception as error:
            # Those before it are committed and have to be sent; the rest is given back.
            log.warning("intent.rest_failed", grants=len(grants) - place, error=str(error))
            return intents + Intents(refused=tuple(map(_contended, grants[place:])))
    return intents


async def disown(database: Database, lost: Sequence[NewAttempt], dialer: str) -> list[Entry]:
    """After a COMMIT that was not answered. It waits for that commit, writes the attempts as not sent, and returns the
    leads that are due again. It may be repeated until it succeeds; whoever dies before that leaves attempts in
    `dialing`, of which the carrier is asked."""
    async with database.transaction() as tx:
        return await dispatch.disown(tx, lost, dialer)


async def is_cancelled(database: Database, lead_id: UUID) -> bool:
    """Whether somebody has asked for the end of a lead since its intent was committed."""
    async with database.connection() as conn:
        return await lead_edits.is_cancelled(conn, lead_id)


async def slow_account(database: Database, carrier: str, account: str, seconds: float) -> None:
    """A carrier said 429. In a transaction of its own: whoever writes results holds attempts, and limits come first."""
    async with database.connection() as conn:
        await dispatch.slow_account(conn, f"{carrier}/{account}", seconds)


async def _intend_alone(
    database: Database,
    grant: Grant,
    dialer: str,
    rules: Rules,
    lock_timeout_ms: int,
    slots: Mapping[UUID, Slot],
) -> Intents:
    try:
        return await _intend(database, [grant], dialer, rules, lock_timeout_ms, slots)
    except CONTENDED:
        return Intents(refused=(_contended(grant),))
    except UNACCEPTABLE as error:
        log.error("intent.lead_failed", lead_id=str(grant.lead_id), error=str(error))
        return Intents(refused=(await _poisoned(database, grant, str(error)),))


def _contended(grant: Grant) -> Refusal:
    return Refusal.of(grant, GateRefusal(RefusalReason.CONTENDED))


async def _poisoned(database: Database, grant: Grant, error: str) -> Refusal:
    """A lead that breaks its own intent is put off, for longer each time, and ends after ten."""
    async with database.connection() as conn:
        finish, moved = await dispatch.put_off(conn, grant.lead_id, grant.version, error)
    answer = GateRefusal(
        RefusalReason.ERROR, until=moved.due_at if moved else None, subject=error[:200], finish=finish
    )
    return Refusal.of(grant, answer, moved)


async def _intend(
    database: Database,
    grants: Sequence[Grant],
    dialer: str,
    rules: Rules,
    lock_timeout_ms: int,
    slots: Mapping[UUID, Slot],
) -> Intents:
    batch = IntentBatch(grants, dialer, rules, slots)
    is_written = False
    try:
        async with database.transaction() as tx:
            await batch.write(tx, lock_timeout_ms)
            is_written = True
    except UNAVAILABLE as error:
        if isinstance(error, UNACCEPTABLE) or not is_written:
            raise
        log.warning("intent.commit_not_answered", attempts=len(batch.attempts), error=str(error))
        lost = {attempt.grant.attempt_id for attempt in batch.attempts}
        others = tuple(_contended(grant) for grant in grants if grant.attempt_id not in lost)
        return Intents(refused=others, lost=tuple(batch.attempts))
    refusals = batch.refusals()
    for refusal in refusals:
        metrics.INTENTS_REFUSED.labels(refusal.reason.value).inc()
    return Intents(batch.intents(), refusals, lost_slots=tuple(batch.lost_slots))
