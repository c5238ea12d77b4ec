"""What follows a call: its end is sent to the merchant's server, and its recording and transcript are fetched."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import pytest
from aiohttp import web

from tests.support.waiting import eventually
from tests.support.world import ADMIN_KEY, World, open_world
from trunkline.telephony.simulator.recordings import WAV


@dataclass
class Server:
    """A merchant's: it hears of leads, and keeps transcripts."""

    url: str = ""
    heard: list[dict[str, Any]] = field(default_factory=list)

    async def hear(self, request: web.Request) -> web.Response:
        assert {"webhook-id", "webhook-timestamp", "webhook-signature"} <= {
            name.lower() for name in request.headers
        }
        self.heard.append(json.loads(await request.read()))
        return web.Response()

    async def transcript(self, _request: web.Request) -> web.Response:
        return web.Response(text="Hello. Goodbye.")


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    found = Server()
    app = web.Application()
    app.router.add_post("/hook", found.hear)
    app.router.add_get("/transcript", found.transcript)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield found
    await runner.cleanup()


@pytest.fixture
async def world(database_url: str, redis_url: str, key_prefix: str, tmp_path: Path) -> AsyncIterator[World]:
    more: dict[str, Any] = {
        "WEBHOOK_ALLOW_INSECURE": "true",
        "CALL_ENRICHER": "fetch",
        "RECORD_CALLS": "true",
        "TRUNKLINE_DATA_DIR": str(tmp_path),
    }
    async with open_world(database_url, redis_url, key_prefix, **more) as world:
        await world.client.create_number("+15005550006", pool="p", carrier="twilio", max_channels=3)
        yield world


async def test_a_finished_lead_sends_its_webhook_and_fetches_its_transcript(
    world: World, server: Server
) -> None:
    made = await world.client.create_lead(
        merchant_id="m", phone="+15005551000", reporting_webhook_url=f"{server.url}/hook"
    )
    lead = await world.finished(made.id)
    [heard] = await eventually(lambda: server.heard, timeout_s=20)
    assert (heard["type"], heard["data"]["id"], heard["data"]["outcome"]) == (
        "lead.finished",
        str(lead.id),
        "ANSWERED",
    )
    [attempt] = heard["data"]["attempts"]
    assert attempt["carrier_call_id"] == lead.attempts[0].carrier_call_id

    await report(world, attempt["id"], attempt["carrier_call_id"], f"{server.url}/transcript")

    async def read() -> dict[str, Any] | None:
        found = (await world.client.get_lead(lead.id)).enrichments or []
        return next((each for each in found if each["transcript"]), None)

    item = await eventually(read, timeout_s=20, what="the transcript can be read")
    assert (item["status"], item["transcript"], item["attempt_id"]) == (
        "READY",
        "Hello. Goodbye.",
        attempt["id"],
    )


async def test_a_recording_named_by_the_carriers_webhook_is_fetched_and_served(world: World) -> None:
    """No agent reports on this call: the carrier's webhook alone starts the fetch."""
    made = await world.client.create_lead(merchant_id="m", phone="+15005551000")
    lead = await world.finished(made.id)

    async def fetched() -> dict[str, Any] | None:
        found = (await world.client.get_lead(lead.id)).enrichments or []
        return next((each for each in found if each["recording_url"]), None)

    item = await eventually(fetched, timeout_s=20, what="the recording is kept")
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {ADMIN_KEY}"}) as session:
        answer = await session.get(f"{world.platform.base_url}{item['recording_url']}")
        assert (answer.status, answer.content_type) == (200, "audio/wav")
        assert await answer.read() == WAV
    [attempt] = lead.attempts
    told = (await world.client.get_lead(lead.id)).attempts[0].recordings
    assert item["attempt_id"] == str(attempt.id)
    assert told is not None
    assert len(told) == 1


async def report(world: World, attempt_id: str, call_sid: str, transcript_ref: str) -> None:
    """As the call's agent would."""
    token = f"{attempt_id}.{world.platform.router.call_keys.sign(UUID(attempt_id), call_sid)}"
    async with aiohttp.ClientSession() as session:
        answer = await session.post(
            f"{world.platform.base_url}/api/v1/calls/{call_sid}/outcome",
            json={"disposition": "interested", "transcript_ref": transcript_ref},
            headers={"Authorization": f"Bearer {token}"},
        )
        assert answer.status == 201, await answer.text()
