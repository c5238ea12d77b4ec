"""Twilio queues what is over its pace. A queued call is seen, can be canceled, and is then never dialled."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

from trunkline.telephony.callbacks import CallbackKeys, callback_url
from trunkline.telephony.carrier import Accepted, CallOrder, HangUpAsked
from trunkline.telephony.simulator import SimulatedAccount, Simulator, SimulatorConfig
from trunkline.telephony.simulator.receiver import Receiver
from trunkline.telephony.twilio import LIST_PAGE_SIZE, Twilio

KEYS = CallbackKeys.from_secrets(["secret"])
TO, FROM = "+15005551101", "+15005559901"


def order(receiver: Receiver, to: str = TO) -> CallOrder:
    attempt = uuid4()
    answer = callback_url(receiver.base_url, "twilio", "answer", attempt, KEYS)
    status = callback_url(receiver.base_url, "twilio", "status", attempt, KEYS)
    return CallOrder(attempt, to, FROM, answer, status, ring_timeout_s=30, time_limit_s=600)


def since() -> datetime:
    return datetime.now(UTC) - timedelta(seconds=60)


async def test_a_queued_call_is_listed_canceled_and_never_dialled() -> None:
    slow = SimulatedAccount(calls_per_s=0.01)
    config = SimulatorConfig(time_scale=0.005, accounts=(slow,))
    async with Receiver() as receiver, Simulator(config) as simulator:
        carrier = Twilio(slow.sid, slow.auth_token, KEYS, base_url=simulator.base_url)
        first, second = [await carrier.place(order(receiver)) for _ in range(2)]
        assert isinstance(first, Accepted)
        assert isinstance(second, Accepted)
        assert first.queued_ms == 0
        assert 90_000 < second.queued_ms <= 100_000

        listed = await carrier.list_calls(TO, FROM, since())
        assert isinstance(listed, list)
        assert {call.call_id: call.state for call in listed}[second.call_id] == "queued"

        assert isinstance(await carrier.hang_up(second.call_id, only_unanswered=True), HangUpAsked)
        await simulator.idle()
        assert [dial.call_id for dial in simulator.ledger.dials] == [first.call_id]
        await carrier.aclose()


async def test_a_list_of_many_pages_is_read_to_its_end() -> None:
    many = LIST_PAGE_SIZE + 5
    account = SimulatedAccount(calls_per_s=1e6)
    config = SimulatorConfig(time_scale=0.001, accounts=(account,))
    async with Receiver() as receiver, Simulator(config) as simulator:
        carrier = Twilio(account.sid, account.auth_token, KEYS, base_url=simulator.base_url)
        placed = [await carrier.place(order(receiver, "+15005551301")) for _ in range(many)]
        listed = await carrier.list_calls("+15005551301", FROM, since())
        assert isinstance(listed, list)
        wanted = {result.call_id for result in placed if isinstance(result, Accepted)}
        assert len(wanted) == many
        assert {call.call_id for call in listed} == wanted
        await simulator.idle()
        await carrier.aclose()
