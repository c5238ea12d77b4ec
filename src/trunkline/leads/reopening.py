"""Whether a finished lead may be called again by a person's order. Pure.

An order loosens nothing: lists, windows and destinations are judged as for a new lead, limits as for every dial.
Attempts of all orders count together, so that none of them exceeds the cap of attempts of one lead.
"""

from enum import StrEnum

from trunkline.model import Outcome
from trunkline.states import LeadStatus
from trunkline.store.lead_edits import ReopeningFacts
from trunkline.store.leads import StoredLead

# The most that a lead may ever have: the schema and the API allow no more.
ATTEMPTS_MAX = 20
# The platform ends their leads, so it would end a new call at once.
_CLOSED_CAMPAIGNS = frozenset({"STOPPING", "STOPPED"})


class ReopenRefusal(StrEnum):
    NOT_FINISHED = "not_finished"
    BEING_CALLED = "being_called"
    CALL_UNKNOWN = "call_unknown"
    CALL_FOUND = "call_found"
    DO_NOT_CALL = "do_not_call"
    NOT_PERMITTED = "not_permitted"
    EXPIRED = "expired"
    ATTEMPTS_USED_UP = "attempts_used_up"
    CAMPAIGN_STOPPED = "campaign_stopped"
    NOT_FOUND = "not_found"


SENTENCES: dict[ReopenRefusal, str] = {
    ReopenRefusal.NOT_FINISHED: "The lead has not finished: it waits, or is being called.",
    ReopenRefusal.BEING_CALLED: "A call to it is still going on. Wait for its end.",
    ReopenRefusal.CALL_UNKNOWN: "It is unknown whether its last call took place, and the carrier did not report "
    "it. Look the call up in the carrier's own console, and try again when the "
    "carrier's call list can be read.",
    ReopenRefusal.CALL_FOUND: "The carrier has the call whose outcome was unknown. The lead ends as that call did.",
    ReopenRefusal.DO_NOT_CALL: "This person is on a do-not-call list.",
    ReopenRefusal.NOT_PERMITTED: "The calling policy does not let this person be called at any time.",
    ReopenRefusal.EXPIRED: "The lead has expired, or expires before it could be called.",
    ReopenRefusal.ATTEMPTS_USED_UP: f"It has had {ATTEMPTS_MAX} attempts, which is the most that a lead may have.",
    ReopenRefusal.CAMPAIGN_STOPPED: "Its campaign was stopped for good.",
    ReopenRefusal.NOT_FOUND: "There is no such lead.",
}


def refusal(lead: StoredLead, facts: ReopeningFacts, max_attempts: int | None) -> ReopenRefusal | None:
    """What forbids it, from the facts under the lead's lock; the caller judges the policy."""
    if lead.status != LeadStatus.FINISHED:
        return ReopenRefusal.NOT_FINISHED
    if facts.is_live:
        return ReopenRefusal.BEING_CALLED
    if facts.unknown_attempts or (lead.outcome == Outcome.UNKNOWN and not facts.is_last_absent):
        return ReopenRefusal.CALL_UNKNOWN
    if facts.campaign_status in _CLOSED_CAMPAIGNS:
        return ReopenRefusal.CAMPAIGN_STOPPED
    if attempts_max(lead, max_attempts) is None:
        return ReopenRefusal.ATTEMPTS_USED_UP
    return ReopenRefusal.DO_NOT_CALL if facts.is_listed else None


def attempts_max(lead: StoredLead, wanted: int | None) -> int | None:
    """The most attempts, those of earlier orders counted. At least one more than it had; None: it may have none."""
    allowed = max(wanted or lead.max_attempts, lead.attempt_count + 1)
    return allowed if allowed <= ATTEMPTS_MAX else None
