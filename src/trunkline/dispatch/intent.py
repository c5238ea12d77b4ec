"""Intent before effect: an attempt is committed before a byte leaves for the carrier.

One transaction per batch. It locks the leads that are still as their grants say, then the numbers, inserts the
attempts, and starts only the leads whose attempt went in. The partial unique indexes of `attempts` are the guard of the
promise; Valkey's grant is a hint. Only what is returned may be sent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from trunkline.model import Grant, Intent
from trunkline.store import dispatch
from trunkline.store.database import Connection, Database
from trunkline.store.dispatch import NewAttempt


@dataclass(frozen=True, slots=True)
class Intents:
    """What may be sent, and the grants that came to nothing."""

    committed: tuple[Intent, ...]
    refused: tuple[Grant, ...]


async def intend(database: Database, grants: Sequence[Grant], dialer: str) -> Intents:
    async with database.transaction() as tx:
        wanted = await _still_wanted(tx, grants)
        inserted = await dispatch.insert_attempts(tx, wanted, dialer) if wanted else set()
        committed = [attempt for attempt in wanted if attempt.id in inserted]
        await dispatch.start_leads(tx, [attempt.lead.id for attempt in committed])
    refused = tuple(grant for grant in grants if grant.attempt_id not in inserted)
    return Intents(tuple(_intent(attempt) for attempt in committed), refused)


async def _still_wanted(tx: Connection, grants: Sequence[Grant]) -> list[NewAttempt]:
    leads = await dispatch.lock_leads(tx, [g.lead_id for g in grants], [g.version for g in grants])
    numbers = await dispatch.lock_numbers(tx, list({g.number_id for g in grants}))
    wanted: dict[UUID, NewAttempt] = {}
    for grant in grants:
        lead, number = leads.get(grant.lead_id), numbers.get(grant.number_id)
        if lead and number and grant.channel_no <= number.max_channels:
            wanted[lead.id] = NewAttempt(grant.attempt_id, lead, number, grant.channel_no)
    return list(wanted.values())


def _intent(attempt: NewAttempt) -> Intent:
    return Intent(
        attempt_id=attempt.id,
        lead_id=attempt.lead.id,
        carrier=attempt.number.carrier,
        account=attempt.number.account,
        to_phone=attempt.lead.phone,
        from_phone=attempt.number.e164,
        due_at=attempt.lead.due_at,
    )
