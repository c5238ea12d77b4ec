"""Refusals with a code that is in no table, and calls that never came about: nobody knows on whose account.

While the account takes other calls it is the lead's, and the third one ends it. A lead that is alone, or on a quiet
account, proves nothing: it costs the lead nothing, it comes back after longer and longer, and an alarm tells of it.
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
# So many of one lead in a row are no chance.
ALARM_FROM = 3
ONCE = Unexplained(1)


async def met(tx: Connection, refused: Mapping[UUID, Attempt]) -> dict[UUID, Unexplained]:
    """By attempt. The attempts are written as refused, under the locks of their leads."""
    found = await attempts.unexplained(tx, {each.lead_id for each in refused.values() if each.lead_id})
    return {each.id: found.get(each.lead_id, ONCE) if each.lead_id else ONCE for each in refused.values()}


def are_others_taken(taken_at: datetime | None, lately: datetime, known: Unexplained) -> bool:
    """Whether the account took a call lately, or since this lead was first refused: on a quiet account, and for the
    last lead of a campaign, that is longer ago."""
    return taken_at is not None and taken_at > min(lately, known.first_at or lately)


async def report(
    tx: Connection, account: AccountName, code: str, lead_id: UUID | None, known: Unexplained
) -> None:
    """Last in its transaction, as all alarms are."""
    if known.times < ALARM_FROM:
        return
    detail = {"code": code, "lead_id": str(lead_id), "times": known.times}
    await raise_alarm(tx, ALARM, "/".join(account), detail)
