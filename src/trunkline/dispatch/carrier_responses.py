"""Writes the carriers' responses, many in one transaction.

A response waits 30 ms for others: at 200 dials a second that is one sixth of the commits, and delays nothing, since the
call goes on at the carrier meanwhile. A webhook may have overtaken the response; the compare-and-set then changes
nothing but a missing call id.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from uuid import UUID

from trunkline.bus.connection import Bus
from trunkline.crashpoint import crash_point
from trunkline.dispatch import unexplained
from trunkline.dispatch.cooldowns import CarrierAnswer, CooldownWriter, end_reason
from trunkline.dispatch.intent import slow_account
from trunkline.dispatch.settlement import Decide, Settlement, Settler
from trunkline.errors import BusUnavailable
from trunkline.leads import settle_decision
from trunkline.leads.retries import Retries
from trunkline.model import Finish, Intent, LeadDecision, Outcome, Retry
from trunkline.states import AttemptState
from trunkline.store import attempts, cooldowns
from trunkline.store.attempts import Attempt, Result, Unexplained
from trunkline.store.cooldowns import AccountName
from trunkline.store.database import UNAVAILABLE, Connection, Database
from trunkline.store.dispatch import UNACCEPTABLE
from trunkline.telemetry import get_logger
from trunkline.telephony.carrier import Accepted, InDoubt, PlaceResult, Rejected, Throttled
from trunkline.value import Value

log = get_logger(__name__)

MAX_DELAY_S = 0.03
BATCH_MAX = 200
RETRY_AFTER_S = 1.0
# A code in no table counts against the lead if the account accepted other calls this recently, or since its first such
# code.
ACCEPTED_RECENTLY = timedelta(seconds=60)
# A call that the dialer itself did not send costs its lead nothing; the delay only prevents a hot loop.
NOT_SENT_DELAY_S = 1.0


class CarrierResponse(Value, frozen=True):
    """A carrier's response to the call of this intent."""

    intent: Intent
    place: PlaceResult

    @property
    def attempt_id(self) -> UUID:
        return self.intent.attempt_id

    @property
    def account(self) -> AccountName:
        return self.intent.carrier, self.intent.account


class CarrierResponseWriter:
    """Collects responses and writes them in batches. One per process."""

    def __init__(self, database: Database, bus: Bus, settler: Settler, cooldown_writer: CooldownWriter):
        self._database = database
        self._bus = bus
        self._settler = settler
        self._cooldowns = cooldown_writer
        self._waiting: list[CarrierResponse] = []
        self._writer: asyncio.Task[None] | None = None

    def add(self, response: CarrierResponse) -> None:
        self._waiting.append(response)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._drain(), name="results")

    async def flush(self) -> None:
        """Wait until every added response is written, or dropped with an error."""
        while self._writer is not None and not self._writer.done():
            await asyncio.wait([self._writer])

    async def _drain(self) -> None:
        await asyncio.sleep(MAX_DELAY_S)
        one_by_one = 0
        while self._waiting:
            batch = self._waiting[: 1 if one_by_one else BATCH_MAX]
            try:
                settlement = await self._write(batch)
            except Exception as error:
                if isinstance(error, UNAVAILABLE) and not isinstance(error, UNACCEPTABLE):
                    # The responses stay here. If this process dies, the attempts are `dialing` past their deadline and
                    # become `in_doubt`: resolved later, and not lost.
                    log.warning("results.store_unavailable", waiting=len(self._waiting), error=str(error))
                    await asyncio.sleep(RETRY_AFTER_S)
                    continue
                if len(batch) > 1:
                    # One of them cannot be written: write one by one, so that it does not block the others.
                    one_by_one = len(batch)
                    continue
                # The checker will ask the carrier about the call.
                log.error("results.not_written", attempt_id=str(batch[0].attempt_id), exc_info=error)
                settlement = Settlement()
            del self._waiting[: len(batch)]
            one_by_one = max(0, one_by_one - 1)
            await self._publish(settlement)
            await self._slow_down(batch)
            await self._cooldowns.note([_as_carrier_answer(response) for response in batch])

    async def _write(self, batch: Sequence[CarrierResponse]) -> Settlement:
        crash_point("results.before_write")
        settling = {
            response.attempt_id: response.place
            for response in batch
            if isinstance(response.place, Rejected | Throttled)
        }
        accepted = [response for response in batch if response.attempt_id not in settling]
        if accepted:
            async with self._database.connection() as conn:
                await attempts.write_results(conn, [_result(response) for response in accepted])
        if not settling:
            return Settlement()
        return await self._settle(
            [response for response in batch if response.attempt_id in settling], settling
        )

    async def _settle(
        self, batch: Sequence[CarrierResponse], settling: Mapping[UUID, Rejected | Throttled]
    ) -> Settlement:
        """Refusals decide about leads, so their leads are locked first."""
        async with self._database.transaction() as tx:
            locked = await attempts.lock(tx, list(settling))
            moved = await attempts.write_results(tx, [_result(response) for response in batch])
            unexplained_responses = [
                each for each in batch if each.attempt_id in moved and _is_unexplained(each.place)
            ]
            refusals = await _unexplained(tx, unexplained_responses, locked) if unexplained_responses else {}
            decisions: dict[UUID, Decide] = {
                response.attempt_id: refusals.get(response.attempt_id)
                or partial(_decide, settling[response.attempt_id])
                for response in batch
                if response.attempt_id in moved
            }
            settlement = await self._settler.settle(tx, locked, decisions)
            for each in sorted(refusals.values(), key=lambda each: each.account):
                await each.report(tx)
            return settlement

    async def _publish(self, settlement: Settlement) -> None:
        try:
            await settlement.publish(self._bus)
        except BusUnavailable as error:
            log.warning("results.bus_unavailable", error=str(error))

    async def _slow_down(self, batch: Sequence[CarrierResponse]) -> None:
        """Accounts whose carrier replied 429. The calls themselves are written by now."""
        waits_s: dict[tuple[str, str], float] = {}
        for response in batch:
            if isinstance(response.place, Throttled):
                wait_s = response.place.retry_after_s
                waits_s[response.account] = max(wait_s, waits_s.get(response.account, 0.0))
        for (carrier, account), wait_s in waits_s.items():
            try:
                await slow_account(self._database, carrier, account, wait_s)
            except UNAVAILABLE as error:
                log.warning("results.account_not_slowed", carrier=carrier, error=str(error))


def _as_carrier_answer(response: CarrierResponse) -> CarrierAnswer:
    intent = response.intent
    return CarrierAnswer(
        intent.attempt_id,
        intent.lead_id,
        response.account,
        intent.number_id,
        intent.to_phone,
        response.place,
        is_probe=intent.is_probe,
    )


def _is_unexplained(place: PlaceResult) -> bool:
    return isinstance(place, Rejected) and place.blames == "unknown"


class _UnexplainedRefusal(Value, frozen=True):
    """The `Decide` of a refusal of unknown cause."""

    account: AccountName
    code: str
    lead_id: UUID
    known: Unexplained
    others_were_accepted: bool

    def __call__(self, attempt: Attempt, retries: Retries) -> LeadDecision:
        return settle_decision.after_unexplained(
            self.code,
            attempt.budget,
            retries,
            others_were_accepted=self.others_were_accepted,
            times=self.known.times,
        )

    async def report(self, tx: Connection) -> None:
        """Only if no attempt was charged: a lead that is charged ends by itself."""
        if not self.others_were_accepted:
            await unexplained.report(tx, self.account, self.code, self.lead_id, self.known)


async def _unexplained(
    tx: Connection, refused: Sequence[CarrierResponse], locked: Mapping[UUID, Attempt]
) -> dict[UUID, _UnexplainedRefusal]:
    """By attempt. Times are Postgres's own."""
    taken_at = await cooldowns.taken_at(tx, sorted({response.account for response in refused}))
    histories = await unexplained.history(
        tx, {response.attempt_id: locked[response.attempt_id] for response in refused}
    )
    refusals = {}
    for response in refused:
        assert isinstance(response.place, Rejected), "the others were not refused"
        now, known = locked[response.attempt_id].read_at, histories[response.attempt_id]
        assert now is not None, "read under its lock"
        are_taken = unexplained.were_others_accepted(
            taken_at.get(response.account), now - ACCEPTED_RECENTLY, known
        )
        refusals[response.attempt_id] = _UnexplainedRefusal(
            response.account, response.place.code, response.intent.lead_id, known, are_taken
        )
    return refusals


def _result(response: CarrierResponse) -> Result:
    match response.place:
        case Accepted(call_id=call_id):
            return Result(response.attempt_id, AttemptState.ACCEPTED, call_id)
        case Rejected() as refused:
            return Result(response.attempt_id, AttemptState.REJECTED, reason=end_reason(refused))
        case Throttled():
            return Result(response.attempt_id, AttemptState.REJECTED, reason="throttled")
        case InDoubt(reason=reason):
            return Result(response.attempt_id, AttemptState.IN_DOUBT, reason=reason)


def _decide(place: Rejected | Throttled, attempt: Attempt, retries: Retries) -> LeadDecision:
    match place:
        case Rejected(reason="not_sent_in_time"):
            return Retry(NOT_SENT_DELAY_S, counted=False)
        case Rejected(code=code, retryable=False):
            return Finish(Outcome.CARRIER_ERROR, code)  # the carrier refuses this destination at any time
        case Rejected(code=code, blames="destination"):
            return settle_decision.after_refusal(code, attempt.budget, retries)
        case Rejected():
            return settle_decision.after_our_failing()
        case Throttled(retry_after_s=retry_after_s):
            return settle_decision.after_throttling(retry_after_s)
