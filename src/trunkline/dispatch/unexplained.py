"""Refusals with a code in no table, and calls that were never placed: whether account or lead is the cause is unknown.

While the account accepts other calls the lead is the cause, and the third refusal ends it. A lead that is alone, or on
a quiet account, proves nothing: the refusal is not counted, the lead retries with growing delays, and an alarm reports
it.
"""

from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

from trunkline.control.raising import raise_alarm
from trunkline.store import attempts
from trunkline.store.attempts import Attempt, Unexplained
from trunkline.store.cooldowns import AccountName
from trunkline.store.database import Connection

ALARM = "unexplained_refusals"
# From this many refusals of one lead in a row on it is no coincidence.
ALARM_FROM = 3
ONCE = Unexplained(1)


async def history(tx: Connection, refused: Mapping[UUID, Attempt]) -> dict[UUID, Unexplained]:
    """By attempt. The attempts are written as refused, under the locks of their leads."""
    by_lead = await attempts.unexplained(tx, {each.lead_id for each in refused.values() if each.lead_id})
    return {each.id: by_lead.get(each.lead_id, ONCE) if each.lead_id else ONCE for each in refused.values()}


def were_others_accepted(taken_at: datetime | None, lately: datetime, known: Unexplained) -> bool:
    """Whether the account accepted a call recently, or since this lead was first refused: on a quiet account, and for
    the last lead of a campaign, that is longer ago."""
    return taken_at is not None and taken_at > min(lately, known.first_at or lately)


async def report(
    tx: Connection, account: AccountName, code: str, lead_id: UUID | None, known: Unexplained
) -> None:
    """Last in its transaction, as all alarms are."""
    if known.times < ALARM_FROM:
        return
    detail = {"code": code, "lead_id": str(lead_id), "times": known.times}
    await raise_alarm(tx, ALARM, "/".join(account), detail)
