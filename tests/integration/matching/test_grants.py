"""Who is granted a channel, which, and how it comes back."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from tests.support.bus.matching import NUMBER, PAST, again, entry, match, numbers
from trunkline.bus import channels, schedule
from trunkline.bus.channels import Configuration
from trunkline.bus.connection import Bus
from trunkline.bus.schedule import GiveBack, GrantReturn
from trunkline.model import Holder, NumberLimit
from trunkline.value import replace


async def test_no_more_is_granted_than_there_are_channels(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 3))
    await schedule.add(bus, [entry() for _ in range(5)])
    grants = await match(bus)
    assert sorted(grant.channel_no for grant in grants) == [1, 2, 3]
    assert await match(bus) == ()


async def test_no_more_is_granted_than_was_asked_for(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 3))
    await schedule.add(bus, [entry() for _ in range(3)])
    assert len(await match(bus, most=2)) == 2


async def test_a_lead_that_is_not_due_waits_and_the_match_says_how_long(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 1))
    await schedule.add(bus, [entry(due_at=datetime.now(UTC) + timedelta(minutes=5))])
    found = await schedule.match(bus, [uuid4()], clock_offset_ms=0)
    assert found.grants == ()
    assert found.next_in_s is not None
    assert 200 < found.next_in_s < 301


async def test_postgres_clock_decides_what_is_due(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 1))
    await schedule.add(bus, [entry(due_at=datetime.now(UTC) + timedelta(minutes=5))])
    found = await schedule.match(bus, [uuid4()], clock_offset_ms=6 * 60 * 1000)
    assert len(found.grants) == 1


async def test_leads_are_granted_oldest_first(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 10))
    leads = [entry(due_at=PAST + timedelta(seconds=i)) for i in range(5)]
    await schedule.add(bus, reversed(leads))
    assert [grant.lead_id for grant in await match(bus)] == [lead.lead_id for lead in leads]


async def test_adding_a_lead_again_changes_nothing_also_while_it_is_granted(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 10))
    lead = entry()
    assert await schedule.add(bus, [lead]) == 1
    assert await schedule.add(bus, [lead]) == 0
    assert len(await match(bus)) == 1
    assert await schedule.add(bus, [lead]) == 0
    assert await match(bus) == ()


async def test_a_newer_version_moves_a_lead_to_its_new_pool(bus: Bus) -> None:
    other = uuid4()
    await numbers(bus, (NUMBER, "p", 10), (other, "q", 10))
    lead = entry()
    await schedule.add(bus, [lead])
    await schedule.add(bus, [entry(lead_id=lead.lead_id, version=2, pool="q")])
    grants = await match(bus)
    assert [(grant.number_id, grant.version) for grant in grants] == [(other, 2)]


async def test_releasing_twice_frees_one_channel(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 2))
    await schedule.add(bus, [entry() for _ in range(3)])
    first, _ = await match(bus)
    assert await channels.release(bus, [first.attempt_id]) == 1
    assert await channels.release(bus, [first.attempt_id]) == 0
    assert len(await match(bus)) == 1


async def test_a_grant_that_was_given_back_can_be_granted_again(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 1))
    await schedule.add(bus, [entry()])
    (grant,) = await match(bus)
    assert await schedule.give_back(bus, [again(grant)]) == 1
    assert await schedule.give_back(bus, [again(grant)]) == 0
    (second,) = await match(bus)
    assert second.lead_id == grant.lead_id


@pytest.mark.parametrize("how", [GrantReturn.AGAIN, GrantReturn.FORGET])
async def test_giving_back_a_stale_grant_leaves_the_newer_version_alone(bus: Bus, how: GrantReturn) -> None:
    await numbers(bus, (NUMBER, "p", 5))
    lead = entry()
    await schedule.add(bus, [lead])
    (stale,) = await match(bus)
    later = datetime.now(UTC) + timedelta(minutes=5)
    await schedule.add(bus, [entry(lead_id=lead.lead_id, version=2, due_at=later)])
    await schedule.give_back(bus, [GiveBack(stale.attempt_id, how)])
    assert await match(bus) == ()
    found = await schedule.match(bus, [uuid4()], clock_offset_ms=301_000)
    assert [(grant.lead_id, grant.version) for grant in found.grants] == [(lead.lead_id, 2)]


async def test_a_grant_given_back_to_forget_can_be_added_anew(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 1))
    lead = entry()
    await schedule.add(bus, [lead])
    (grant,) = await match(bus)
    await schedule.give_back(bus, [GiveBack(grant.attempt_id, GrantReturn.FORGET)])
    assert await match(bus) == ()
    assert await schedule.add(bus, [lead]) == 1


async def test_the_true_holder_of_a_channel_replaces_a_wrong_one(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 1))
    await schedule.add(bus, [entry()])
    (grant,) = await match(bus)
    truth = Holder(uuid4(), NUMBER, grant.channel_no, uuid4())
    assert await channels.hold(bus, [truth]) == 1
    assert await channels.hold(bus, [truth]) == 0
    assert await channels.release(bus, [grant.attempt_id]) == 0
    assert [holder.attempt_id for holder in await channels.holders(bus)] == [truth.attempt_id]


async def test_a_lowered_maximum_grants_nothing_until_calls_have_ended(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 3))
    await schedule.add(bus, [entry() for _ in range(6)])
    held = await match(bus)
    assert await numbers(bus, (NUMBER, "p", 1)) == 1
    await channels.release(bus, [held[0].attempt_id, held[1].attempt_id])
    assert await match(bus) == ()
    await channels.release(bus, [held[2].attempt_id])
    assert len(await match(bus)) == 1


async def test_a_removed_number_grants_nothing(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 3))
    await numbers(bus)
    await schedule.add(bus, [entry()])
    assert await match(bus) == ()


async def test_the_least_loaded_number_is_chosen(bus: Bus) -> None:
    small, large = uuid4(), uuid4()
    await numbers(bus, (small, "p", 1), (large, "p", 4))
    await schedule.add(bus, [entry() for _ in range(5)])
    chosen = [grant.number_id for grant in await match(bus)]
    assert chosen.count(small) == 1
    assert chosen[0] == large


async def test_a_number_of_the_callees_region_is_preferred_while_one_is_free(bus: Bus) -> None:
    near, far = uuid4(), uuid4()
    limits = (NumberLimit(near, "p", 1, "+1415"), NumberLimit(far, "p", 5, "+1212"))
    await channels.configure(bus, Configuration(numbers=limits))
    await schedule.add(bus, [replace(entry(), region="+1415") for _ in range(2)])
    assert [grant.number_id for grant in await match(bus)] == [near, far], "then the least loaded of all"
    await schedule.add(bus, [entry(), replace(entry(), region="+44")])
    assert {grant.number_id for grant in await match(bus)} == {far}
    await channels.configure(bus, Configuration(numbers=(NumberLimit(far, "p", 5, "+1415"),)))
    await schedule.add(bus, [replace(entry(), region="+1212"), replace(entry(), region="+1415")])
    assert {grant.number_id for grant in await match(bus)} == {far}, "it has moved to another region"


async def test_full_pools_do_not_keep_the_match_from_a_pool_with_a_free_channel(bus: Bus) -> None:
    """A run looks at sixty-four pools; full ones are out of its way until they have a channel."""
    full = [uuid4() for _ in range(70)]
    busy = [(number, f"p{n}", 1) for n, number in enumerate(full)]
    await numbers(bus, *busy)
    for _ in range(2):
        await schedule.add(bus, [entry(pool=pool) for _, pool, _ in busy])
    held = [grant for _ in range(4) for grant in await match(bus, 40)]
    assert len(held) == 70
    await numbers(bus, *busy, (NUMBER, "last", 1))
    await schedule.add(bus, [entry(pool="last")])
    found = [grant.number_id for _ in range(3) for grant in await match(bus)]
    assert found == [NUMBER]
    await channels.release(bus, [held[7].attempt_id])
    assert [grant.number_id for grant in await match(bus)] == [held[7].number_id], "and it is looked at again"


async def test_a_release_never_frees_the_channel_of_another_attempt(bus: Bus) -> None:
    """Whatever went wrong before: the channel names its holder, and only he lets it go."""
    await numbers(bus, (NUMBER, "p", 1))
    await schedule.add(bus, [entry(), entry()])
    (grant,) = await match(bus)
    await bus.client.hset(f"{bus.projection}channels:{NUMBER}", "1", "another")
    await channels.release(bus, [grant.attempt_id])
    assert await match(bus) == ()


async def test_a_person_who_is_being_called_makes_a_lead_wait_for_that_call(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 10))
    await schedule.add(bus, [entry()])
    (talking,) = await match(bus)
    waiting = entry()
    await schedule.add(bus, [waiting])
    (refused,) = await match(bus)
    later_ms = schedule.to_ms(datetime.now(UTC) + timedelta(hours=1))
    back = GiveBack(refused.attempt_id, GrantReturn.BEHIND, later_ms, str(talking.attempt_id))
    await schedule.give_back(bus, [back])
    assert await match(bus) == ()
    await channels.release(bus, [talking.attempt_id])
    assert [grant.lead_id for grant in await match(bus)] == [waiting.lead_id]


async def test_a_paced_number_is_not_granted_until_its_pause_ends(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 10))
    await schedule.add(bus, [entry(), entry()])
    (grant,) = await match(bus, most=1)
    soon_ms = schedule.to_ms(datetime.now(UTC) + timedelta(hours=1))
    await schedule.give_back(bus, [GiveBack(grant.attempt_id, GrantReturn.REST, soon_ms)])
    assert await match(bus) == ()
    found = await schedule.match(bus, [uuid4()], clock_offset_ms=3_700_000)
    assert len(found.grants) == 1


async def test_a_paced_account_pauses_all_of_its_numbers(bus: Bus) -> None:
    one, other, of_another = uuid4(), uuid4(), uuid4()
    limits = [NumberLimit(each, "p", 10, account="twilio/a") for each in (one, other)]
    limits.append(NumberLimit(of_another, "p", 1, account="twilio/b"))
    await channels.configure(bus, Configuration(numbers=tuple(limits)))
    await schedule.add(bus, [entry() for _ in range(6)])
    (grant,) = await match(bus, most=1)
    soon_ms = schedule.to_ms(datetime.now(UTC) + timedelta(hours=1))
    await schedule.give_back(bus, [GiveBack(grant.attempt_id, GrantReturn.REST_ALL, soon_ms)])
    assert [grant.number_id for grant in await match(bus)] == [of_another]
    found = await schedule.match(bus, [uuid4() for _ in range(9)], clock_offset_ms=3_700_000)
    assert {grant.number_id for grant in found.grants} == {one, other}


async def test_a_number_that_changed_its_account_is_paused_with_the_new_one_only(bus: Bus) -> None:
    stays, moves = uuid4(), uuid4()
    for account in ("twilio/a", "twilio/b"):
        limits = (NumberLimit(stays, "p", 9, account="twilio/a"), NumberLimit(moves, "p", 1, account=account))
        await channels.configure(bus, Configuration(numbers=limits))
    await schedule.add(bus, [entry(), entry()])
    (grant,) = await match(bus, most=1)
    soon_ms = schedule.to_ms(datetime.now(UTC) + timedelta(hours=1))
    await schedule.give_back(bus, [GiveBack(grant.attempt_id, GrantReturn.REST_ALL, soon_ms)])
    assert [grant.number_id for grant in await match(bus)] == [moves]
