"""Leads whose calling window closed before their turn. The match parks them; `reopen` gives them a new due time."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from trunkline.dispatch.gates import UNREADABLE_POLICY, never_opens
from trunkline.dispatch.intent_batch import Rules
from trunkline.dispatch.policy_cache import Owner
from trunkline.dispatch.refusals import RefusalReason
from trunkline.leads.calling_policy import Effective
from trunkline.leads.windows import Opening
from trunkline.model import Entry
from trunkline.store import dispatch
from trunkline.store.database import Database
from trunkline.store.dispatch import ClosedLead, IntentWrites, Move, NewDecision


async def reopen(database: Database, rules: Rules, closed: Sequence[tuple[UUID, int]]) -> list[Entry]:
    """Leads (id and version) at their next opening, in Postgres first. One that never opens again ends."""
    async with database.transaction() as tx:
        leads = await dispatch.lock_closed(tx, closed)
        policies = await rules.policies.of(tx, map(_owner, leads))
        writes = IntentWrites()
        for lead in leads:
            _apply_opening(writes, lead, _opening(lead, policies[_owner(lead)]))
        written = await dispatch.write(tx, writes, "reopen")
        if writes.ends:
            await rules.on_finished(tx, writes.ends)
    return list(written.moved.values())


def _opening(lead: ClosedLead, policy: Effective | None) -> Opening | None:
    """Under an unreadable policy the lead is judged again later; the intent would refuse it as well."""
    if policy is None:
        return Opening(lead.now + UNREADABLE_POLICY, None)
    return policy.opening(lead.phone, lead.timezone, max(lead.due_at, lead.now))


def _apply_opening(writes: IntentWrites, lead: ClosedLead, opening: Opening | None) -> None:
    until: datetime | None = None
    if opening is None:
        finish = never_opens().finish
        assert finish is not None
        writes.ends[lead.id] = finish
    else:
        until = opening.opens_at
        writes.moves[lead.id] = Move(opening.opens_at, opening.closes_at)
    writes.decisions.append(NewDecision(lead.id, RefusalReason.WINDOW.value, lead.merchant_id, None, until))


def _owner(lead: ClosedLead) -> Owner:
    return Owner(lead.reseller_id, lead.merchant_id, lead.campaign_id)
