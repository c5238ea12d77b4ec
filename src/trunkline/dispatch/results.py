"""Writes down what the carrier answered, many answers in one transaction.

An answer waits a moment for company (30 ms): at 200 dials a second that is six times fewer commits, and nobody is
kept waiting, since the call goes on at the carrier meanwhile. A webhook may have overtaken the answer; the
compare-and-set then changes nothing but a missing call id.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from uuid import UUID

from trunkline.bus.connection import Bus
from trunkline.crashpoint import crash_point
from trunkline.dispatch.intent import slow_account
from trunkline.dispatch.settlement import Decide, Settlement, Settler
from trunkline.errors import BusUnavailable
from trunkline.leads import policy
from trunkline.leads.retries import Retries
from trunkline.model import Decision, Finish, Outcome, Retry
from trunkline.states import AttemptState
from trunkline.store import attempts
from trunkline.store.attempts import Attempt, Result
from trunkline.store.database import UNAVAILABLE, Database
from trunkline.store.dispatch import UNACCEPTABLE
from trunkline.telemetry import get_logger
from trunkline.telephony.carrier import Accepted, InDoubt, PlaceResult, Rejected, Throttled
from trunkline.value import Value

log = get_logger(__name__)

LINGER_S = 0.03
BATCH_MAX = 200
RETRY_AFTER_S = 1.0
# An account that is refused as a whole starts one call in so long, until one is taken.
REFUSED_PAUSE_S = 2.0
# A call that we ourselves did not send costs its lead nothing; it only must not come back in a hot loop.
NOT_SENT_DELAY_S = 1.0


class Answer(Value, frozen=True):
    attempt_id: UUID
    place: PlaceResult
    # Carrier and name of the account that it was asked of.
    account: tuple[str, str]


class ResultWriter:
    """Collects answers and writes them in batches. One per process."""

    def __init__(self, database: Database, bus: Bus, settler: Settler):
        self._database = database
        self._bus = bus
        self._settler = settler
        self._waiting: list[Answer] = []
        self._writer: asyncio.Task[None] | None = None

    def add(self, answer: Answer) -> None:
        self._waiting.append(answer)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._drain(), name="results")

    async def flush(self) -> None:
        """Wait until everything that was added is written, or given up on."""
        while self._writer is not None and not self._writer.done():
            await asyncio.wait([self._writer])

    async def _drain(self) -> None:
        await asyncio.sleep(LINGER_S)
        apart = 0
        while self._waiting:
            batch = self._waiting[: 1 if apart else BATCH_MAX]
            try:
                settlement = await self._write(batch)
            except Exception as error:
                if isinstance(error, UNAVAILABLE) and not isinstance(error, UNACCEPTABLE):
                    # The answers stay here. If this process dies, the attempts are `dialing` past their deadline and
                    # become `in_doubt`: nothing is lost, only slower.
                    log.warning("results.store_unavailable", waiting=len(self._waiting), error=str(error))
                    await asyncio.sleep(RETRY_AFTER_S)
                    continue
                if len(batch) > 1:
                    # One of them cannot be written, and must not keep the others from it: one by one.
                    apart = len(batch)
                    continue
                # The checker will ask the carrier what became of the call.
                log.error("results.not_written", attempt_id=str(batch[0].attempt_id), exc_info=error)
                settlement = Settlement()
            del self._waiting[: len(batch)]
            apart = max(0, apart - 1)
            await self._tell(settlement)
            await self._slow_down(batch)

    async def _write(self, batch: Sequence[Answer]) -> Settlement:
        crash_point("results.before_write")
        settling = {
            answer.attempt_id: answer.place
            for answer in batch
            if isinstance(answer.place, Rejected | Throttled)
        }
        taken = [answer for answer in batch if answer.attempt_id not in settling]
        if taken:
            async with self._database.connection() as conn:
                await attempts.write_results(conn, [_result(answer) for answer in taken])
        if not settling:
            return Settlement()
        return await self._settle([answer for answer in batch if answer.attempt_id in settling], settling)

    async def _settle(
        self, batch: Sequence[Answer], settling: Mapping[UUID, Rejected | Throttled]
    ) -> Settlement:
        """Refusals decide about leads, so their leads are locked first."""
        async with self._database.transaction() as tx:
            locked = await attempts.lock(tx, list(settling))
            moved = await attempts.write_results(tx, [_result(answer) for answer in batch])
            decisions: dict[UUID, Decide] = {
                attempt_id: partial(_decide, settling[attempt_id])
                for attempt_id in settling
                if attempt_id in moved
            }
            return await self._settler.settle(tx, locked, decisions)

    async def _tell(self, settlement: Settlement) -> None:
        try:
            await settlement.tell(self._bus)
        except BusUnavailable as error:
            log.warning("results.bus_unavailable", error=str(error))

    async def _slow_down(self, batch: Sequence[Answer]) -> None:
        """Accounts whose carrier said that we are too fast, or takes nothing of theirs: a wrong password must not end
        every lead that is due. The calls themselves are written by now."""
        waits_s: dict[tuple[str, str], float] = {}
        for answer in batch:
            if wait_s := _slows(answer.place):
                waits_s[answer.account] = max(wait_s, waits_s.get(answer.account, 0.0))
        for (carrier, account), wait_s in waits_s.items():
            try:
                await slow_account(self._database, carrier, account, wait_s)
            except UNAVAILABLE as error:
                log.warning("results.account_not_slowed", carrier=carrier, error=str(error))


def _slows(place: PlaceResult) -> float | None:
    match place:
        case Throttled(retry_after_s=wait_s):
            return wait_s
        case Rejected(reason="refused" | "not_connected", retryable=True):
            return REFUSED_PAUSE_S
        case _:
            return None


def _result(answer: Answer) -> Result:
    match answer.place:
        case Accepted(call_id=call_id):
            return Result(answer.attempt_id, AttemptState.ACCEPTED, call_id)
        case Rejected(reason=reason, code=code):
            return Result(answer.attempt_id, AttemptState.REJECTED, reason=f"{reason}:{code}")
        case Throttled():
            return Result(answer.attempt_id, AttemptState.REJECTED, reason="throttled")
        case InDoubt(reason=reason):
            return Result(answer.attempt_id, AttemptState.IN_DOUBT, reason=reason)


def _decide(place: Rejected | Throttled, attempt: Attempt, retries: Retries) -> Decision:
    match place:
        case Rejected(reason="not_sent_in_time"):
            return Retry(NOT_SENT_DELAY_S, counted=False)
        case Rejected(code=code, retryable=False):
            return Finish(
                Outcome.CARRIER_ERROR, code
            )  # this destination is refused, whenever it is asked for
        case Rejected(code=code):
            return policy.after_refusal(code, attempt.budget, retries)
        case Throttled(retry_after_s=retry_after_s):
            return policy.after_throttling(retry_after_s)
