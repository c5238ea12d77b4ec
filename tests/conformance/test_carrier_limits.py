"""Pace and limits as each carrier has them: queues, 429 with a time, calls at once; and lists of many pages."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.telephony.carriers import FROM, Line, open_line
from trunkline.telephony import exotel, plivo, twilio, vapi
from trunkline.telephony.carrier import Accepted, HangUpAsked, PlaceResult, Throttled
from trunkline.telephony.simulator import SimulatorConfig
from trunkline.telephony.simulator.config import CarrierName

TO = "+15005551301"


def config(name: CarrierName, **limits: float) -> SimulatorConfig:
    usual = SimulatorConfig(time_scale=0.005)
    accounts = tuple(replace(one, **limits) if one.carrier == name else one for one in usual.accounts)  # type: ignore[arg-type]
    return replace(usual, accounts=accounts)


async def placed(line: Line, count: int, to: str = TO) -> list[PlaceResult]:
    return [await line.carrier.place(line.order(to)) for _ in range(count)]


@pytest.mark.parametrize("name", ["twilio", "plivo"])
async def test_a_queued_call_is_listed_cancelled_and_never_dialled(name: CarrierName) -> None:
    async with open_line(name, config(name, calls_per_s=0.01)) as line:
        assert line.carrier.limits.queues_excess
        first, second = await placed(line, 2)
        assert isinstance(first, Accepted)
        assert isinstance(second, Accepted)
        states = {call.call_id: call.state for call in await line.listed(TO)}
        assert states[second.call_id] == "queued"
        assert isinstance(await line.carrier.hang_up(second.call_id, only_unanswered=True), HangUpAsked)
        await line.simulator.idle()
        assert [dial.call_id for dial in line.simulator.ledger.dials] == [first.call_id]


async def test_twilio_reports_how_long_a_queued_call_will_wait() -> None:
    async with open_line("twilio", config("twilio", calls_per_s=0.01)) as line:
        first, second = await placed(line, 2)
        assert isinstance(first, Accepted)
        assert isinstance(second, Accepted)
        assert first.queued_ms == 0
        assert second.queued_ms is not None
        assert 90_000 < second.queued_ms <= 100_000


async def test_a_full_carrier_queue_throttles_the_next_call() -> None:
    slow = replace(config("twilio", calls_per_s=0.01), queue_max=1)
    async with open_line("twilio", slow) as line:
        results = await placed(line, 3)
        assert [type(result) for result in results] == [Accepted, Accepted, Throttled]


@pytest.mark.parametrize("name", ["twilio", "plivo", "exotel", "vapi"])
async def test_a_request_over_the_rate_limit_is_throttled_with_retry_after(name: CarrierName) -> None:
    async with open_line(name, config(name, requests_per_min=2)) as line:
        *taken, refused = await placed(line, 3)
        assert [type(result) for result in taken] == [Accepted, Accepted]
        assert isinstance(refused, Throttled)
        assert refused.reason == "pace"
        assert 0 < refused.retry_after_s <= 60
        await line.simulator.idle()
        assert len(line.simulator.ledger.dials) == 2


@pytest.mark.parametrize("name", ["twilio", "plivo", "vapi"])
async def test_a_call_over_the_concurrency_limit_is_throttled_for_concurrency(name: CarrierName) -> None:
    async with open_line(name, config(name, max_concurrent=1)) as line:
        first, second = await placed(line, 2, "+15005551701")
        assert isinstance(first, Accepted)
        assert isinstance(second, Throttled)
        assert second.reason == "concurrency"
        assert len(line.simulator.ledger.dials) == 1


PAGES = {
    "twilio": twilio.LIST_PAGE_SIZE,
    "plivo": plivo.LIST_PAGE_SIZE,
    "exotel": exotel.LIST_PAGE_SIZE,
    "vapi": vapi.LIST_PAGE_SIZE,
}


@pytest.mark.parametrize("name", PAGES)
async def test_list_calls_reads_every_page(name: CarrierName) -> None:
    many = PAGES[name] + 5
    async with open_line(name, replace(config(name, calls_per_s=1e6), time_scale=0.001)) as line:
        results = await placed(line, many)
        await line.simulator.idle()
        wanted = {result.call_id for result in results if isinstance(result, Accepted)}
        assert len(wanted) == many
        listed = await line.carrier.list_calls(TO, FROM, datetime.now(UTC) - timedelta(seconds=120))
        assert isinstance(listed, list)
        assert {call.call_id for call in listed} == wanted
