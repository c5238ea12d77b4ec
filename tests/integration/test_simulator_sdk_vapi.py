"""The official Vapi SDK against the simulator: what it can do at Vapi, it can do here."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from vapi import AssistantOverrides, AsyncVapi, CreateCustomerDto, Server
from vapi.core.api_error import ApiError
from vapi.core.unchecked_base_model import construct_type
from vapi.types.server_message import ServerMessage

from tests.support.telephony.carriers import open_line
from trunkline.telephony.carrier import Accepted
from trunkline.telephony.simulator import Simulator, SimulatorConfig
from trunkline.telephony.simulator.receiver import Receiver
from trunkline.telephony.simulator.vapi import number_id
from trunkline.value import replace

ACCOUNT = SimulatorConfig().account("vapi")
TO, FROM = "+15005551601", "+15005559901"


class Sdk:
    def __init__(self, simulator: Simulator, receiver: Receiver, key: str) -> None:
        self.simulator = simulator
        self.receiver = receiver
        self.http = httpx.AsyncClient(timeout=10)
        self.client = AsyncVapi(token=key, base_url=simulator.base_url, httpx_client=self.http)

    async def create(self, to: str = TO) -> Any:
        server = Server(url=f"{self.receiver.base_url}/webhooks/vapi/status", headers={"X-Vapi-Secret": "s"})
        return await self.client.calls.create(
            assistant_id="assistant-1",
            phone_number_id=number_id(FROM),
            customer=CreateCustomerDto(number=to),
            assistant_overrides=AssistantOverrides(
                server=server, metadata={"attempt": "1"}, max_duration_seconds=43_200
            ),
        )


@pytest.fixture
async def sdk() -> AsyncIterator[Sdk]:
    async with Receiver() as receiver, Simulator(SimulatorConfig(time_scale=0.005)) as simulator:
        simulator.vapi_numbers.add(FROM)
        sdk = Sdk(simulator, receiver, ACCOUNT.auth_token)
        yield sdk
        await sdk.http.aclose()


def messages(receiver: Receiver) -> list[Any]:
    return [json.loads(request.body)["message"] for request in receiver.requests]


async def test_vapis_sdk_creates_and_gets_a_call(sdk: Sdk) -> None:
    created = await sdk.create()
    assert (created.status, created.type, created.customer.number) == ("queued", "outboundPhoneCall", TO)
    await sdk.receiver.until(lambda receiver: "in-progress" in [m.get("status") for m in messages(receiver)])
    call = await sdk.client.calls.get(created.id)
    assert (call.id, call.status, call.phone_number_id) == (created.id, "in-progress", number_id(FROM))
    assert call.assistant_overrides is not None
    assert call.assistant_overrides.metadata == {"attempt": "1"}
    assert abs(call.created_at - datetime.now(UTC)) < timedelta(minutes=1)


async def test_vapis_sdk_types_read_every_message(sdk: Sdk) -> None:
    created = await sdk.create("+15005551501")
    await sdk.simulator.idle()
    read = [
        construct_type(type_=ServerMessage, object_=json.loads(request.body))
        for request in sdk.receiver.requests
    ]
    told: list[Any] = [message.message for message in read if isinstance(message, ServerMessage)]
    kinds = [message.type for message in told]
    assert kinds.count("status-update") == 4
    assert kinds.count("end-of-call-report") == 1
    assert {message.call.id for message in told} == {created.id}
    assert {request.headers["x-vapi-secret"] for request in sdk.receiver.requests} == {"s"}


async def test_vapis_sdk_lists_calls_by_number_and_time(sdk: Sdk) -> None:
    calls = [(await sdk.create("+15005551101")).id for _ in range(3)]
    hour = timedelta(hours=1)
    now = datetime.now(UTC)

    async def listed(**query: Any) -> list[str]:
        return [call.id for call in await sdk.client.calls.list(**query)]

    assert await listed() == calls[::-1]
    assert await listed(limit=2) == calls[:0:-1]
    assert await listed(phone_number_id=number_id(FROM), created_at_ge=now - hour) == calls[::-1]
    assert await listed(created_at_ge=now + hour) == []
    assert await listed(created_at_le=now - hour) == []


async def test_vapis_sdk_lists_the_numbers_of_the_organisation(sdk: Sdk) -> None:
    numbers = await sdk.client.phone_numbers.list()
    assert {number.number: number.id for number in numbers}[FROM] == number_id(FROM)


@pytest.mark.parametrize("to", ["+15005550001", "nobody"])
async def test_vapis_sdk_reads_the_simulators_refusals(sdk: Sdk, to: str) -> None:
    with pytest.raises(ApiError) as refused:
        await sdk.create(to)
    assert refused.value.status_code == 400
    assert "E.164" in refused.value.body["message"]


async def test_an_unknown_call_and_a_wrong_key_are_refused(sdk: Sdk) -> None:
    with pytest.raises(ApiError) as missing:
        await sdk.client.calls.get("00000000-0000-4000-8000-000000000009")
    assert missing.value.status_code == 404
    stranger = Sdk(sdk.simulator, sdk.receiver, "wrong")
    with pytest.raises(ApiError) as refused:
        await stranger.create()
    await stranger.http.aclose()
    assert refused.value.status_code == 401


async def test_a_call_is_found_by_the_key_that_the_api_shows() -> None:
    """The key of an occurrence travels with the order, over the wire, and comes back with the call."""
    async with open_line("vapi") as line:
        order = replace(line.order(TO), idempotency_key="occurrence-1-abcdef01")
        placed = await line.carrier.place(order)
        assert isinstance(placed, Accepted)
        stranger = Sdk(line.simulator, line.receiver, line.account.auth_token)
        found = {
            call.assistant_overrides.metadata["idempotency_key"]: call.id
            for call in await stranger.client.calls.list()
            if call.assistant_overrides is not None and call.assistant_overrides.metadata is not None
        }
        await stranger.http.aclose()
    assert found == {"occurrence-1-abcdef01": placed.call_id}
