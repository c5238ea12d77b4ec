"""Intent before effect: an attempt is committed before a byte leaves for the carrier.

One transaction per batch (`intent_batch`). The partial unique indexes of `attempts` guard the promise; Valkey's grant
is a hint. The sender may send only what is returned here, and every refused grant has a reason. A COMMIT without a
reply may have gone through: none of its calls is sent, and its attempts are disowned.
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
# For a grant alone, after its batch failed: a lock was held for 500 ms already, and other grants are waiting.
LOCK_TIMEOUT_ALONE_MS = 50


class Intents(Value, frozen=True):
    """The calls to send, the refused grants, and the attempts whose COMMIT got no reply: they are not sent, and have to
    be disowned."""

    committed: tuple[Intent, ...] = ()
    refused: tuple[Refusal, ...] = ()
    lost: tuple[NewAttempt, ...] = ()
    # Proposed slots that Postgres has given to another call, or whose pod is gone.
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
    """One transaction for all; if a lock or a single lead makes it fail, one for each, so that no
    other grant is held up."""
    rules = rules or Rules()
    if len(grants) == 1:
        return await _intend_alone(database, grants[0], dialer, rules, LOCK_TIMEOUT_MS, slots)
    try:
        return await _intend(database, grants, dialer, rules, LOCK_TIMEOUT_MS, slots)
    except (*CONTENDED, *UNACCEPTABLE) as error:
        log.warning("intent.batch_failed", grants=len(grants), error=str(error))
    intents = Intents()
    for position, grant in enumerate(grants):
        try:
            intents += await _intend_alone(database, grant, dialer, rules, LOCK_TIMEOUT_ALONE_MS, slots)
        except Exception as error:
            # The grants before it are committed and have to be sent; the others are given back.
            log.warning("intent.rest_failed", grants=len(grants) - position, error=str(error))
            return intents + Intents(refused=tuple(map(_contended, grants[position:])))
    return intents


async def disown(database: Database, lost: Sequence[NewAttempt], dialer: str) -> list[Entry]:
    """After a COMMIT without a reply: waits for that commit, writes the attempts as not sent, and returns the leads
    that are due again. It may be repeated until it succeeds; a process that dies before that leaves attempts in
    `dialing`, and the checker asks the carrier about them."""
    async with database.transaction() as tx:
        return await dispatch.disown(tx, lost, dialer)


async def is_cancelled(database: Database, lead_id: UUID) -> bool:
    """Whether the lead was cancelled after its intent was committed."""
    async with database.connection() as conn:
        return await lead_edits.is_cancelled(conn, lead_id)


async def slow_account(database: Database, carrier: str, account: str, seconds: float) -> None:
    """The carrier replied 429. A transaction of its own: writing results locks attempts, and limits are locked
    first."""
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
    """A lead that breaks its own intent is deferred, longer each time, and ends after ten times."""
    async with database.connection() as conn:
        finish, moved = await dispatch.defer_broken(conn, grant.lead_id, grant.version, error)
    refusal = GateRefusal(
        RefusalReason.ERROR, until=moved.due_at if moved else None, subject=error[:200], finish=finish
    )
    return Refusal.of(grant, refusal, moved)


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
