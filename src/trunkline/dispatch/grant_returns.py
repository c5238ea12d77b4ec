"""What Valkey does with a grant that Postgres refused. Each reason blocks its cause, so that no grant loops."""

from collections.abc import Iterable

from trunkline.bus.schedule import GiveBack, GrantReturn, to_ms
from trunkline.dispatch.refusals import Blocks, Refusal, RefusalReason
from trunkline.model import Entry, Holder

# The match retries a refusal without a time of its own after this: Valkey and Postgres disagree, and a reconciler will
# correct one of them.
PAUSE_MS = 1000
# The match retries a flow whose merchant has used up its day once a minute: the limit may have been raised.
PARK_MAX_MS = 60_000


def give_backs(refusals: Iterable[Refusal]) -> list[GiveBack]:
    return [_give_back(refusal) for refusal in refusals]


def _give_back(refusal: Refusal) -> GiveBack:
    attempt_id = refusal.grant.attempt_id
    if refusal.is_gone:
        return GiveBack(attempt_id, GrantReturn.FORGET)
    until_ms = to_ms(refusal.until) if refusal.until else -PAUSE_MS
    is_wait = refusal.is_wait
    match refusal.blocks:
        case Blocks.CHANNEL:
            # The channel gets its true owner; the lead may be granted another one at once.
            return GiveBack(attempt_id, GrantReturn.AGAIN)
        case Blocks.PERSON:
            return GiveBack(attempt_id, GrantReturn.BEHIND, until_ms, behind=refusal.owner, is_wait=True)
        case Blocks.FLOW:
            needs_agent = refusal.reason is RefusalReason.AGENTS
            park_ms = _park_until_ms(refusal, until_ms)
            return GiveBack(
                attempt_id, GrantReturn.PARK, park_ms, until_a_release=needs_agent, is_wait=is_wait
            )
        case Blocks.NUMBER:
            return GiveBack(
                attempt_id, GrantReturn.REST, until_ms, is_wait=is_wait, is_cooldown=_is_cooldown(refusal)
            )
        case Blocks.ACCOUNT:
            return GiveBack(
                attempt_id, GrantReturn.REST_ALL, until_ms, is_wait=is_wait, is_cooldown=_is_cooldown(refusal)
            )
        case Blocks.LEAD:
            return GiveBack(attempt_id, GrantReturn.AGAIN, until_ms, is_wait=is_wait)


def _is_cooldown(refusal: Refusal) -> bool:
    return refusal.reason is RefusalReason.COOLDOWN


def _park_until_ms(refusal: Refusal, until_ms: int) -> int:
    granted_ms = refusal.grant.granted_ms
    return min(until_ms, granted_ms + PARK_MAX_MS) if granted_ms else until_ms


def true_holders(refusals: Iterable[Refusal]) -> list[Holder]:
    """The owners, according to Postgres, of the channels that were refused."""
    return [
        Holder(refusal.owner, refusal.grant.number_id, refusal.grant.channel_no)
        for refusal in refusals
        if refusal.blocks is Blocks.CHANNEL and refusal.owner is not None
    ]


def moved_entries(refusals: Iterable[Refusal]) -> list[Entry]:
    """Leads that Postgres has given another due time."""
    return [refusal.moved for refusal in refusals if refusal.moved is not None]
