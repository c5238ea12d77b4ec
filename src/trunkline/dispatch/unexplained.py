"""Refusals with a code in no table, and calls that were never placed: whether account or lead is the cause is unknown.

While the account accepts other calls the lead is the cause, and the third refusal ends it. A lead that is alone, or on
a quiet account, proves nothing: the refusal is not counted, the lead retries with growing delays, and an alarm reports
it.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from uuid import UUID

from trunkline.control.raising import raise_alarm
from trunkline.dispatch.cooldowns import CarrierAnswer
from trunkline.leads import settle_decision
from trunkline.leads.retries import Retries
from trunkline.model import LeadDecision
from trunkline.store import attempts, cooldowns
from trunkline.store.attempts import Attempt, Unexplained
from trunkline.store.cooldowns import AccountName
from trunkline.store.database import Connection
from trunkline.telephony.carrier import Rejected
from trunkline.value import Value

ALARM = "unexplained_refusals"
# From this many refusals of one lead in a row on it is no coincidence.
ALARM_FROM = 3
# A code counts against the lead if the account accepted other calls this recently, or since the lead's first such code.
ACCEPTED_RECENTLY = timedelta(seconds=60)
ONCE = Unexplained(1)


class UnexplainedRefusal(Value, frozen=True):
    """The `Decide` of a refusal of unknown cause."""

    account: AccountName
    code: str
    lead_id: UUID | None
    # In a row, with this one.
    times: int
    others_were_accepted: bool

    def __call__(self, attempt: Attempt, retries: Retries) -> LeadDecision:
        return settle_decision.after_unexplained(
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
            await raise_alarm(tx, ALARM, "/".join(self.account), detail)


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
