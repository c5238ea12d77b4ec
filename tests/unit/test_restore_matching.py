"""Which leads were called by calls that a restored database does not know."""

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

from trunkline.dispatch.restore_check import LostCall, match
from trunkline.store.restores import OurNumber, WaitingLead
from trunkline.telephony.carrier import CallView

NOON = datetime(2030, 5, 1, 12, tzinfo=UTC)
FOUND = NOON + timedelta(hours=3)
NUMBER = OurNumber("+14155550100", uuid4(), "p", "twilio", "default")
OVERFLOWS = {"p": None, "q": "p", "x": None}


def lead(
    due: timedelta = timedelta(0), *, phone: str = "+15005551000", pool: str = "p", came: datetime = NOON
) -> WaitingLead:
    return WaitingLead(uuid4(), "r", "m", phone, pool, NOON + due, came)


def lost(
    at: timedelta = timedelta(minutes=1), *, to: str = "+15005551000", number: OurNumber | None = NUMBER
) -> LostCall:
    call = CallView(str(uuid4()), to, "+14155550100", "completed", "ended", "completed", started_at=NOON + at)
    return LostCall("twilio", "default", call, number)


def called(calls: list[LostCall], leads: list[WaitingLead]) -> dict[UUID, list[str]]:
    found = match(calls, leads, OVERFLOWS, FOUND)
    return {each.lead.id: [one.call.call_id for one in each.calls] for each in found.called}


def test_an_unknown_call_is_matched_to_the_due_lead_of_its_phone() -> None:
    one, call = lead(), lost()
    assert called([call], [one]) == {one.id: [call.call.call_id]}


def test_two_unknown_calls_of_a_phone_are_matched_to_one_lead_in_order() -> None:
    one, first, second = lead(), lost(), lost(timedelta(minutes=2))
    assert called([second, first], [one]) == {one.id: [first.call.call_id, second.call.call_id]}


def test_each_lead_is_matched_to_one_call_before_any_gets_its_second() -> None:
    leads = [lead(), lead(timedelta(seconds=1))]
    calls = [lost(timedelta(minutes=n)) for n in (1, 2, 3)]
    assert [len(each) for each in called(calls, leads).values()] == [2, 1]


def test_of_two_leads_and_one_call_the_later_lead_is_doubtful() -> None:
    first, second = lead(), lead(timedelta(seconds=1))
    found = match([lost()], [first, second], OVERFLOWS, FOUND)
    assert [each.lead.id for each in found.called] == [first.id]
    assert found.doubtful == [second]


def test_a_lead_due_later_is_not_matched() -> None:
    tomorrow = lead(timedelta(days=1))
    found = match([lost()], [tomorrow], OVERFLOWS, FOUND)
    assert (found.called, found.doubtful, found.later) == ([], [], [tomorrow])
    assert len(found.orphans) == 1, "the call was for a lead that is lost"


def test_a_lead_sent_again_after_the_restore_is_matched() -> None:
    again = lead(timedelta(hours=4), came=FOUND + timedelta(minutes=1))
    assert list(called([lost()], [again])) == [again.id]


def test_a_call_from_a_number_outside_the_leads_pool_is_not_matched() -> None:
    assert called([lost()], [lead(pool="x")]) == {}


def test_a_call_from_a_number_of_the_overflow_pool_is_matched() -> None:
    assert len(called([lost()], [lead(pool="q")])) == 1


def test_a_call_from_an_unknown_number_is_matched_to_any_pool() -> None:
    assert len(called([lost(number=None)], [lead(pool="x")])) == 1
