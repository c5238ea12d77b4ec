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

from trunkline.control.raising import raise_alarm
from trunkline.crashpoint import crash_point
from trunkline.dispatch.cooldowns import CarrierAnswer, CooldownWriter, end_reason
from trunkline.dispatch.settlement import Decide, Settlement, Settler
from trunkline.errors import BusUnavailable
from trunkline.leads import outcomes
from trunkline.leads.retries import Retries
from trunkline.model import Finish, LeadDecision, Outcome, Retry
from trunkline.states import AttemptState
from trunkline.store import attempts, cooldowns, dispatch
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
# A call that the dialer itself did not send costs its lead nothing; the delay only prevents a hot loop.
NOT_SENT_DELAY_S = 1.0
UNEXPLAINED_ALARM = "unexplained_refusals"
# From this many unexplained refusals of one lead in a row on it is no coincidence.
ALARM_FROM = 3
# A code in no table counts against the lead if the account accepted other calls this recently, or since its first such
# code.
ACCEPTED_RECENTLY = timedelta(seconds=60)
ONCE = Unexplained(1)


class CarrierResponseWriter:
    """Collects responses and writes them in batches. One per process."""

    def __init__(self, database: Database, settler: Settler, cooldown_writer: CooldownWriter):
        self._database = database
        self._settler = settler
        self._cooldowns = cooldown_writer
        self._waiting: list[CarrierAnswer] = []
        self._writer: asyncio.Task[None] | None = None

    def add(self, response: CarrierAnswer) -> None:
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
                settlement = None
            del self._waiting[: len(batch)]
            one_by_one = max(0, one_by_one - 1)
            if settlement is not None:
                try:
                    await self._settler.publish(settlement)
                except BusUnavailable as error:
                    log.warning("results.bus_unavailable", error=str(error))
            await self._slow_down(batch)
            await self._cooldowns.note(batch)

    async def _write(self, batch: Sequence[CarrierAnswer]) -> Settlement | None:
        """None: no response decides about a lead."""
        crash_point("results.before_write")
        settling: list[CarrierAnswer] = []
        others: list[Result] = []
        for response in batch:
            match response.place:
                case Accepted(call_id=call_id):
                    others.append(Result(response.attempt_id, AttemptState.ACCEPTED, call_id))
                case InDoubt(reason=reason):
                    others.append(Result(response.attempt_id, AttemptState.IN_DOUBT, reason=reason))
                case _:
                    settling.append(response)
        if others:
            async with self._database.connection() as conn:
                await attempts.write_results(conn, others)
        return await self._settle(settling) if settling else None

    async def _settle(self, batch: Sequence[CarrierAnswer]) -> Settlement:
        """Refusals decide about leads, so their leads are locked first."""
        async with self._database.transaction() as tx:
            locked = await attempts.lock(tx, [response.attempt_id for response in batch])
            refused = [
                Result(each.attempt_id, AttemptState.REJECTED, reason=end_reason(each.place))
                for each in batch
            ]
            moved = await attempts.write_results(tx, refused)
            written = [response for response in batch if response.attempt_id in moved]
            unexplained = await unexplained_refusals(tx, written, locked)
            decisions: dict[UUID, Decide] = {
                response.attempt_id: partial(_decide, response.place) for response in written
            }
            settlement = await self._settler.settle(tx, locked, decisions | unexplained)
            for refusal in sorted(unexplained.values(), key=lambda refusal: refusal.account):
                await refusal.report(tx)
            return settlement

    async def _slow_down(self, batch: Sequence[CarrierAnswer]) -> None:
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


async def slow_account(database: Database, carrier: str, account: str, seconds: float) -> None:
    """The carrier replied 429. A transaction of its own: writing results locks attempts, and limits are locked
    first."""
    async with database.connection() as conn:
        await dispatch.slow_account(conn, f"{carrier}/{account}", seconds)


class UnexplainedRefusal(Value, frozen=True):
    """The `Decide` of a refusal with a code in no table, or of a call that was never placed: whether account or lead is
    the cause is unknown. While the account accepts other calls the lead is the cause, and the third refusal ends it. A
    lead that is alone, or on a quiet account, proves nothing: the refusal is not counted, the lead retries with growing
    delays, and an alarm reports it."""

    account: AccountName
    code: str
    lead_id: UUID | None
    # In a row, with this one.
    times: int
    others_were_accepted: bool

    def __call__(self, attempt: Attempt, retries: Retries) -> LeadDecision:
        return outcomes.after_unexplained(
            self.code,
            attempt.budget,
            retries,
            others_were_accepted=self.others_were_accepted,
            times=self.times,
        )

    async def report(self, tx: Connection) -> None:
        """Only if no attempt was charged: a lead that is charged ends by itself. Last in its transaction, as all alarms
        are."""
        if not self.others_were_accepted and self.times >= ALARM_FROM:
            detail = {"code": self.code, "lead_id": str(self.lead_id), "times": self.times}
            await raise_alarm(tx, UNEXPLAINED_ALARM, "/".join(self.account), detail)


async def unexplained_refusals(
    tx: Connection, answers: Sequence[CarrierAnswer], locked: Mapping[UUID, Attempt]
) -> dict[UUID, UnexplainedRefusal]:
    """By attempt, of those whose cause is unknown. Written as refused, under the locks of their leads; times are
    Postgres's own."""
    refused = [
        (answer, answer.place)
        for answer in answers
        if isinstance(answer.place, Rejected) and answer.place.blames == "unknown"
    ]
    if not refused:
        return {}
    taken_at = await cooldowns.taken_at(tx, sorted({answer.account for answer, _ in refused}))
    known = await history(tx, [locked[answer.attempt_id] for answer, _ in refused])
    refusals = {}
    for answer, place in refused:
        now, earlier, taken = (
            locked[answer.attempt_id].read_at,
            known[answer.attempt_id],
            taken_at.get(answer.account),
        )
        assert now is not None, "read under its lock"
        # On a quiet account, and for the last lead of a campaign, the lead's first refusal is longer ago.
        since = min(now - ACCEPTED_RECENTLY, earlier.first_at or now)
        refusals[answer.attempt_id] = UnexplainedRefusal(
            answer.account, place.code, answer.lead_id, earlier.times, taken is not None and taken > since
        )
    return refusals


async def history(tx: Connection, refused: Sequence[Attempt]) -> dict[UUID, Unexplained]:
    """How often in a row the leads of these attempts were refused so, by attempt. Under the locks of their leads."""
    by_lead = await attempts.unexplained(tx, {each.lead_id for each in refused if each.lead_id})
    return {each.id: by_lead.get(each.lead_id, ONCE) if each.lead_id else ONCE for each in refused}


def _decide(place: PlaceResult, attempt: Attempt, retries: Retries) -> LeadDecision:
    match place:
        case Rejected(reason="not_sent_in_time"):
            return Retry(NOT_SENT_DELAY_S, counted=False)
        case Rejected(code=code, retryable=False):
            return Finish(Outcome.CARRIER_ERROR, code)  # the carrier refuses this destination at any time
        case Rejected(code=code, blames="destination"):
            return outcomes.after_refusal(code, attempt.budget, retries)
        case Throttled(retry_after_s=retry_after_s):
            return outcomes.after_throttling(retry_after_s)
        case _:
            return outcomes.after_our_failing()
