"""The official Twilio SDK against the simulator: what it can do at Twilio, it can do here."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest
from twilio.base.exceptions import TwilioRestException  # type: ignore[import-untyped]
from twilio.http.http_client import TwilioHttpClient  # type: ignore[import-untyped]
from twilio.rest import Client  # type: ignore[import-untyped]

from trunkline.telephony.simulator import SimulatedAccount, Simulator, SimulatorConfig
from trunkline.telephony.simulator.receiver import Receiver

T = TypeVar("T")
ACCOUNT = SimulatedAccount()
TO, FROM = "+15005551601", "+15005559901"


class Redirected(TwilioHttpClient):  # type: ignore[misc]
    """Sends what is meant for Twilio to the simulator."""

    def __init__(self, base_url: str) -> None:
        super().__init__(timeout=10)
        self._base_url = base_url

    def request(self, method: str, url: str, *args: Any, **options: Any) -> Any:
        assert url.startswith("https://api.twilio.com/")
        return super().request(
            method, url.replace("https://api.twilio.com", self._base_url), *args, **options
        )


class Sdk:
    """The SDK blocks, so each use of it runs in a thread."""

    def __init__(self, simulator: Simulator, receiver: Receiver, auth_token: str) -> None:
        self.simulator = simulator
        self.receiver = receiver
        self.http = Redirected(simulator.base_url)
        self.client = Client(ACCOUNT.sid, auth_token, http_client=self.http)

    async def use(self, work: Callable[[Any], T]) -> T:
        return await asyncio.to_thread(work, self.client)

    async def create(self, to: str = TO) -> Any:
        return await self.use(
            lambda client: client.calls.create(
                to=to,
                from_=FROM,
                url=f"{self.receiver.base_url}/webhooks/twilio/answer",
                status_callback=f"{self.receiver.base_url}/webhooks/twilio/status",
                status_callback_event=["initiated", "ringing", "answered", "completed"],
                timeout=600,
                time_limit=3600,
            )
        )


@pytest.fixture
async def sdk() -> AsyncIterator[Sdk]:
    async with Receiver() as receiver, Simulator(SimulatorConfig(time_scale=0.005)) as simulator:
        sdk = Sdk(simulator, receiver, ACCOUNT.auth_token)
        yield sdk
        sdk.http.session.close()


async def test_twilios_sdk_creates_and_fetches_a_call(sdk: Sdk) -> None:
    created = await sdk.create()
    assert (created.status, created.to, created._from) == ("queued", TO, FROM)
    await sdk.receiver.until(lambda receiver: any(b"in-progress" in r.body for r in receiver.requests))
    fetched = await sdk.use(lambda client: client.calls(created.sid).fetch())
    assert (fetched.sid, fetched.status, fetched.direction) == (created.sid, "in-progress", "outbound-api")
    assert abs(fetched.start_time - datetime.now(UTC)) < timedelta(minutes=1)
    assert fetched.end_time is None


async def test_events_subscribed_by_twilios_sdk_reach_the_receiver(sdk: Sdk) -> None:
    await sdk.create("+15005551101")
    await sdk.simulator.idle()
    bodies = [request.body for request in sdk.receiver.requests]
    assert all(any(word in body for body in bodies) for word in (b"initiated", b"ringing", b"busy"))


async def test_twilios_sdk_hangs_up_a_call(sdk: Sdk) -> None:
    created = await sdk.create()
    await sdk.receiver.until(lambda receiver: any(b"in-progress" in r.body for r in receiver.requests))
    updated = await sdk.use(lambda client: client.calls(created.sid).update(status="completed"))
    assert updated.status == "completed"
    with pytest.raises(TwilioRestException) as refused:
        await sdk.use(lambda client: client.calls(created.sid).update(status="completed"))
    assert refused.value.code == 21220


async def test_twilios_sdk_lists_calls_by_number_status_and_time_over_several_pages(sdk: Sdk) -> None:
    busy = [(await sdk.create("+15005551101")).sid for _ in range(5)]
    other = await sdk.create("+15005551601")
    await sdk.receiver.until(lambda receiver: sum(b"busy" in r.body for r in receiver.requests) == 5)
    hour = timedelta(hours=1)
    now = datetime.now(UTC)

    async def listed(**query: Any) -> list[str]:
        return await sdk.use(lambda client: [call.sid for call in client.calls.list(**query)])

    assert await listed() == [other.sid, *busy[::-1]]
    assert await listed(to="+15005551101", page_size=2) == busy[::-1]
    assert await listed(from_=FROM, status="busy") == busy[::-1]
    assert await listed(from_="+15005559902") == []
    assert await listed(to="+15005551101", start_time_after=now - hour) == busy[::-1]
    assert await listed(to="+15005551101", start_time_after=now + hour) == []
    assert await listed(to="+15005551101", start_time_before=now - hour) == []


async def test_twilios_sdk_reads_the_simulators_refusals(sdk: Sdk) -> None:
    with pytest.raises(TwilioRestException) as refused:
        await sdk.create("+15005550001")
    assert (refused.value.status, refused.value.code) == (400, 21211)
    with pytest.raises(TwilioRestException) as missing:
        await sdk.use(lambda client: client.calls("CA" + "0" * 32).fetch())
    assert (missing.value.status, missing.value.code) == (404, 20404)


async def test_wrong_credentials_are_refused(sdk: Sdk) -> None:
    stranger = Sdk(sdk.simulator, sdk.receiver, "wrong")
    with pytest.raises(TwilioRestException) as refused:
        await stranger.create()
    stranger.http.session.close()
    assert (refused.value.status, refused.value.code) == (401, 20003)
