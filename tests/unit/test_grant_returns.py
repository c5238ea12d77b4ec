"""What becomes of a refused grant: every reason blocks what it refused."""

from datetime import UTC, datetime
from uuid import uuid4

import pytest

from trunkline.bus.schedule import ANY_RELEASE, GrantReturn
from trunkline.dispatch.grants import PARK_MAX_MS, PAUSE_MS, given_back, moved_entries, true_holders
from trunkline.model import Blocks, Entry, Finish, Flow, Grant, Outcome, Refusal, RefusalReason
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
    return Refusal(reason, blocks, until, owner=OWNER, finish=finish, moved=moved)


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
    back = given_back(GRANT, refusal(blocks))
    assert (back.attempt_id, back.how, back.until_ms) == (GRANT.attempt_id, how, 2_000_000)


def test_a_flow_is_parked_for_a_minute_at_most() -> None:
    """A raised daily limit of a merchant takes effect before midnight."""
    granted = replace(GRANT, granted_ms=1_000_000)
    back = given_back(granted, refusal(Blocks.FLOW))
    assert (back.how, back.until_ms) == (GrantReturn.PARK, 1_000_000 + PARK_MAX_MS)


def test_a_flow_refused_for_agents_is_parked_until_a_release() -> None:
    lacks_agent, is_over_limit = (
        given_back(GRANT, refusal(Blocks.FLOW, reason=reason))
        for reason in (RefusalReason.AGENTS, RefusalReason.LIMIT)
    )
    assert (lacks_agent.subject, is_over_limit.subject) == (ANY_RELEASE, "")


def test_a_refusal_without_a_time_pauses_relative_to_valkeys_clock() -> None:
    back = given_back(GRANT, refusal(Blocks.LEAD, until=None))
    assert back.until_ms == -PAUSE_MS


def test_a_refusal_for_a_taken_channel_returns_its_owner_and_the_lead_at_once() -> None:
    taken = refusal(Blocks.CHANNEL, reason=RefusalReason.CHANNEL)
    back = given_back(GRANT, taken)
    assert (back.how, back.until_ms) == (GrantReturn.AGAIN, 0)
    (holder,) = true_holders({GRANT: taken})
    assert (holder.attempt_id, holder.number_id, holder.channel_no) == (OWNER, GRANT.number_id, 2)


def test_a_refusal_for_a_person_being_called_waits_behind_that_attempt() -> None:
    back = given_back(GRANT, refusal(Blocks.PERSON))
    assert back.subject == str(OWNER)


def test_a_deferred_lead_is_forgotten_and_scheduled_anew() -> None:
    entry = Entry(GRANT.lead_id, 4, Flow("p", "r", "m"), UNTIL)
    moved = refusal(Blocks.LEAD, reason=RefusalReason.WINDOW, moved=entry)
    assert given_back(GRANT, moved).how is GrantReturn.FORGET
    assert moved_entries({GRANT: moved}) == [entry]


def test_a_lead_that_ended_is_forgotten() -> None:
    ended = refusal(Blocks.LEAD, finish=Finish(Outcome.UNKNOWN, None))
    assert given_back(GRANT, ended).how is GrantReturn.FORGET
    assert moved_entries({GRANT: ended}) == []
