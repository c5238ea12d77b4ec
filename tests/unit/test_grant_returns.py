"""What becomes of a refused grant: every reason blocks what it refused."""

from datetime import UTC, datetime
from uuid import uuid4

import pytest

from trunkline.bus.schedule import GrantReturn
from trunkline.dispatch.grant_returns import PARK_MAX_MS, PAUSE_MS, give_backs, moved_entries, true_holders
from trunkline.dispatch.refusals import Blocks, Refusal, RefusalReason
from trunkline.model import Entry, Finish, Flow, Grant, Outcome
from trunkline.value import replace

UNTIL = datetime.fromtimestamp(2_000, UTC)
OWNER = uuid4()
GRANT = Grant(uuid4(), uuid4(), 3, uuid4(), 2, 1_000_000)


def refusal(
    blocks: Blocks,
    *,
    reason: RefusalReason = RefusalReason.LIMIT,
    until: datetime | None = UNTIL,
    moved: Entry | None = None,
    finish: Finish | None = None,
) -> Refusal:
    return Refusal(GRANT, reason, blocks, until, None, OWNER, moved, finish)


@pytest.mark.parametrize(
    ("blocks", "how"),
    [
        (Blocks.LEAD, GrantReturn.AGAIN),
        (Blocks.PERSON, GrantReturn.BEHIND),
        (Blocks.FLOW, GrantReturn.PARK),
        (Blocks.NUMBER, GrantReturn.REST),
        (Blocks.ACCOUNT, GrantReturn.REST_ALL),
    ],
)
def test_a_refused_grant_blocks_what_it_names_until_its_time(blocks: Blocks, how: GrantReturn) -> None:
    (back,) = give_backs([refusal(blocks)])
    assert (back.attempt_id, back.how, back.until_ms) == (GRANT.attempt_id, how, 2_000_000)


def test_a_flow_is_parked_for_a_minute_at_most() -> None:
    """A raised daily limit of a merchant takes effect before midnight."""
    granted = replace(GRANT, granted_ms=1_000_000)
    (back,) = give_backs([replace(refusal(Blocks.FLOW), grant=granted)])
    assert (back.how, back.until_ms) == (GrantReturn.PARK, 1_000_000 + PARK_MAX_MS)


def test_a_flow_refused_for_agents_is_parked_until_a_release() -> None:
    lacks_agent, is_over_limit = give_backs(
        [refusal(Blocks.FLOW, reason=RefusalReason.AGENTS), refusal(Blocks.FLOW, reason=RefusalReason.LIMIT)]
    )
    assert (lacks_agent.until_a_release, is_over_limit.until_a_release) == (True, False)


def test_a_refusal_without_a_time_pauses_relative_to_valkeys_clock() -> None:
    (back,) = give_backs([refusal(Blocks.LEAD, until=None)])
    assert back.until_ms == -PAUSE_MS


def test_a_refusal_for_a_taken_channel_returns_its_owner_and_the_lead_at_once() -> None:
    taken = refusal(Blocks.CHANNEL, reason=RefusalReason.CHANNEL)
    (back,) = give_backs([taken])
    assert (back.how, back.until_ms) == (GrantReturn.AGAIN, 0)
    (holder,) = true_holders([taken])
    assert (holder.attempt_id, holder.number_id, holder.channel_no) == (OWNER, GRANT.number_id, 2)


def test_a_refusal_for_a_person_being_called_waits_behind_that_attempt() -> None:
    (back,) = give_backs([refusal(Blocks.PERSON)])
    assert back.behind == OWNER


def test_a_deferred_lead_is_forgotten_and_scheduled_anew() -> None:
    entry = Entry(GRANT.lead_id, 4, Flow("p", "r", "m"), UNTIL)
    moved = refusal(Blocks.LEAD, reason=RefusalReason.WINDOW, moved=entry)
    assert [back.how for back in give_backs([moved])] == [GrantReturn.FORGET]
    assert moved_entries([moved]) == [entry]


def test_a_lead_that_ended_is_forgotten() -> None:
    ended = refusal(Blocks.LEAD, finish=Finish(Outcome.UNKNOWN, None))
    assert [back.how for back in give_backs([ended])] == [GrantReturn.FORGET]
    assert moved_entries([ended]) == []
