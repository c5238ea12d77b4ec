"""The official Plivo SDK against the simulator: what it can do at Plivo, it can do here."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import plivo  # type: ignore[import-untyped]
import pytest
from plivo.exceptions import (  # type: ignore[import-untyped]
    AuthenticationError,
    ResourceNotFoundError,
    ValidationError,
)
from plivo.utils.signature_v3 import validate_v3_signature  # type: ignore[import-untyped]

from trunkline.telephony.forms import read_form
from trunkline.telephony.plivo import PlivoDocuments
from trunkline.telephony.simulator import Simulator, SimulatorConfig
from trunkline.telephony.simulator.receiver import Receiver

T = TypeVar("T")
ACCOUNT = SimulatorConfig().account("plivo")
TO, FROM = "15005551601", "15005559901"
HOME = "https://api.plivo.com"


class Sdk:
    """The SDK blocks, so each use of it runs in a thread; and it knows one host, so what it sends is redirected."""

    def __init__(self, simulator: Simulator, receiver: Receiver, auth_token: str) -> None:
        self.simulator = simulator
        self.receiver = receiver
        self.client = plivo.RestClient(ACCOUNT.sid, auth_token, timeout=10)
        send = self.client.session.send

        def redirected(request: Any, **options: Any) -> Any:
            assert request.url.startswith(HOME)
            request.url = request.url.replace(HOME, simulator.base_url)
            return send(request, **options)

        self.client.session.send = redirected

    async def use(self, work: Callable[[Any], T]) -> T:
        return await asyncio.to_thread(work, self.client)

    async def create(self, to: str = TO) -> Any:
        hooks = f"{self.receiver.base_url}/webhooks/plivo"
        return await self.use(
            lambda client: client.calls.create(
                from_=FROM,
                to_=to,
                answer_url=f"{hooks}/answer",
                ring_url=f"{hooks}/status",
                hangup_url=f"{hooks}/status",
                ring_timeout=60_000,
                time_limit=3600,
            )
        )


@pytest.fixture
async def sdk() -> AsyncIterator[Sdk]:
    async with (
        Receiver() as receiver,
        Simulator(SimulatorConfig(time_scale=0.005)) as simulator,
    ):
        receiver.document = lambda _: PlivoDocuments().answer_document(receiver.stream_url, {})
        sdk = Sdk(simulator, receiver, ACCOUNT.auth_token)
        yield sdk
        sdk.client.session.close()
        sdk.client.multipart_session.close()


def says(*words: bytes) -> Callable[[Receiver], bool]:
    return lambda receiver: any(all(word in request.body for word in words) for request in receiver.requests)


async def test_plivos_sdk_creates_and_shows_a_live_call(sdk: Sdk) -> None:
    created = await sdk.create()
    assert created.message == "call fired"
    await sdk.receiver.until(says(b"StartApp"))
    live = await sdk.use(lambda client: client.live_calls.get(created.request_uuid))
    assert (live.call_uuid, live.call_status, live.to) == (created.request_uuid, "in-progress", TO)
    ids = await sdk.use(lambda client: client.live_calls.list_ids(from_number=FROM, to_number=TO).calls)
    assert ids == [created.request_uuid]


async def test_plivos_validator_accepts_every_webhook(sdk: Sdk) -> None:
    await sdk.create("15005551001")
    await sdk.simulator.idle()
    assert {dict(read_form(request.body) or ())["Event"] for request in sdk.receiver.requests} == {
        "Ring",
        "StartApp",
        "Hangup",
    }
    for request in sdk.receiver.requests:
        assert validate_v3_signature(
            "POST",
            request.url,
            request.headers["x-plivo-signature-v3-nonce"],
            ACCOUNT.auth_token,
            request.headers["x-plivo-signature-v3"],
            dict(read_form(request.body) or ()),
        )


async def test_its_validator_accepts_what_is_told_of_a_stream(sdk: Sdk) -> None:
    status_url = f"{sdk.receiver.base_url}/webhooks/plivo/stream?attempt=1"
    document = PlivoDocuments().answer_document(sdk.receiver.stream_url, {}, status_url=status_url)
    sdk.receiver.document = lambda _: document
    await sdk.create("15005551001")
    await sdk.simulator.idle()
    told = [request for request in sdk.receiver.requests if request.url == status_url]
    forms = [dict(read_form(request.body) or ()) for request in told]
    assert [form["Event"] for form in forms] == ["StartStream", "StopStream"]
    for request, form in zip(told, forms, strict=True):
        assert validate_v3_signature(
            "POST",
            request.url,
            request.headers["x-plivo-signature-v3-nonce"],
            ACCOUNT.auth_token,
            request.headers["x-plivo-signature-v3"],
            form,
        )


async def test_plivos_sdk_hangs_up_and_reads_the_record(sdk: Sdk) -> None:
    created = await sdk.create()
    await sdk.receiver.until(says(b"StartApp"))
    await sdk.use(lambda client: client.calls.delete(created.request_uuid))
    await sdk.simulator.idle()
    record = await sdk.use(lambda client: client.calls.get(created.request_uuid))
    assert (record.hangup_cause_code, record.to_number, record.from_number) == (4000, TO, FROM)
    with pytest.raises(ResourceNotFoundError):
        await sdk.use(lambda client: client.live_calls.get(created.request_uuid))


async def test_plivos_sdk_cancels_a_ringing_request(sdk: Sdk) -> None:
    created = await sdk.create("15005551701")
    await sdk.receiver.until(says(b"ringing"))
    await sdk.use(lambda client: client.calls.cancel(created.request_uuid))
    await sdk.simulator.idle()
    assert says(b"Hangup", b"cancel")(sdk.receiver)


async def test_plivos_sdk_lists_calls_by_number_and_time_over_several_pages(sdk: Sdk) -> None:
    wanted = {(await sdk.create("15005551101")).request_uuid for _ in range(25)}
    await sdk.simulator.idle()

    def listed(client: Any, **query: Any) -> list[str]:
        return [call.call_uuid for call in client.calls.list(to_number="15005551101", **query)]

    first = await sdk.use(lambda client: listed(client, limit=20))
    second = await sdk.use(lambda client: listed(client, limit=20, offset=20))
    assert len(first) == 20
    assert set(first) | set(second) == wanted
    hour = timedelta(hours=1)
    later = f"{datetime.now(UTC) + hour:%Y-%m-%d %H:%M:%S}"
    assert await sdk.use(lambda client: listed(client, end_time__gte=later)) == []


async def test_plivos_sdk_reads_the_simulators_refusals(sdk: Sdk) -> None:
    with pytest.raises(ValidationError, match="to parameter is invalid"):
        await sdk.create("15005550001")
    with pytest.raises(ResourceNotFoundError):
        await sdk.use(lambda client: client.calls.get("no-such-call"))


async def test_wrong_credentials_are_refused(sdk: Sdk) -> None:
    stranger = Sdk(sdk.simulator, sdk.receiver, "wrong")
    with pytest.raises(AuthenticationError):
        await stranger.create()
    stranger.client.session.close()
    stranger.client.multipart_session.close()
