"""A real nginx in front: a stream reaches the pod that its address names, and the fallback reaches any."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.integration.test_router_http import KEY, Face, served
from tests.support.api import nginx
from trunkline.agent.agent import Agent
from trunkline.agent.echo import converse
from trunkline.agent.settings import AgentSettings
from trunkline.agent.simulated import SimulatedPods
from trunkline.bus.connection import connect
from trunkline.bus.keys import Keys

TEMPLATES = Path(__file__).parents[2] / "deploy" / "nginx"

pytestmark = pytest.mark.skipif(nginx.NGINX is None, reason="no nginx here: apt-get install nginx-light")


@pytest.fixture
async def face(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Face]:
    bus = connect(redis_url, Keys(prefix=key_prefix))
    async with served(bus, key_prefix, database_url) as face:
        yield face
    await bus.close()


async def talk(session: aiohttp.ClientSession, url: str, call_sid: str, token: str) -> str:
    """What comes back from a stream, or why it was refused."""
    start = {"streamSid": "MZ1", "callSid": call_sid, "customParameters": {"token": token}}
    async with session.ws_connect(url) as socket:
        await socket.send_json({"event": "connected", "protocol": "Call", "version": "1.0.0"})
        await socket.send_json({"event": "start", "start": start, "streamSid": "MZ1"})
        await socket.send_json({"event": "media", "media": {"payload": "fn5+", "track": "inbound"}})
        answer = await socket.receive(timeout=10)
        if answer.type is not aiohttp.WSMsgType.TEXT:
            return str(answer.extra)
        await socket.send_json({"event": "stop"})
        return str(answer.json()["media"]["payload"])


async def test_a_stream_reaches_the_pod_that_registered_itself(face: Face, tmp_path: Path) -> None:
    async def handle(call: Any) -> None:
        await converse(call)

    settings = AgentSettings(router_url=face.url, api_key=KEY, pod_name="outside", accepts_fallback=True)
    stray = Agent(handle, settings, port=0)
    runner = web.AppRunner(_fallback_app(stray), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    values = {
        "ROUTERS": nginx.servers(face.url),
        "ROUTER_KEY": KEY,
        "FALLBACK": f"127.0.0.1:{runner.addresses[0][1]}",
    }
    async with (
        SimulatedPods(2, face.url, KEY) as pods,
        nginx.serving(TEMPLATES / "self-registered.conf.template", values, tmp_path / "nginx") as address,
    ):
        allocation = (await face.post("/allocate", {"call_sid": "CA1"}))[1]["allocation"]
        pod, token = allocation["pod_name"], allocation["token"]

        heard = await talk(face.session, f"ws://{address}/ws/pod/{pod}/CA1", "CA1", token)
        assert heard == "fn5+"
        assert [record.pod for record in pods.records().calls] == [pod]

        for name in ("voice-agent-9", "no.such.pod"):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await talk(face.session, f"ws://{address}/ws/pod/{name}/CA1", "CA1", token)
            assert refused.value.status == 403

        stray_url = f"ws://{address}/agent/voice/twilio/callback/CA2"
        assert await talk(face.session, stray_url, "CA2", "") == "fn5+"
        async with face.session.get(f"http://{address}/api/v1/status") as response:
            assert response.status == 401, "the proxy lends its key to nobody"
        async with face.session.get(f"http://{address}/_pod") as response:
            assert response.status == 404
        await stray.stop()
    await runner.cleanup()


async def test_in_a_cluster_a_stream_goes_where_the_pods_name_leads(tmp_path: Path) -> None:
    asked: list[str] = []

    async def show(request: web.Request) -> web.Response:
        asked.append(f"{request.host} {request.path_qs}")
        return web.Response(text="here")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", show)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    # Addresses in the place of names: `127.0.0` and what comes after it is a pod's address that needs no DNS.
    values = {
        "ROUTERS": nginx.servers(f"http://127.0.0.1:{port}"),
        "FALLBACK": f"127.0.0.1:{port}",
        "RESOLVER": "127.0.0.1:1",
        "PODS": f".0.0.1:{port}",
    }
    template = TEMPLATES / "kubernetes.conf.template"
    async with (
        nginx.serving(template, values, tmp_path / "nginx") as address,
        aiohttp.ClientSession() as session,
    ):
        async with session.get(f"http://{address}/ws/pod/127/CA1?token=t") as response:
            assert (response.status, await response.text()) == (200, "here")
        async with session.get(f"http://{address}/ws/pod/evil.example.com/CA1") as response:
            assert asked[-1].endswith("/ws/pod/evil.example.com/CA1"), (
                "a name with dots is no pod, and stays here"
            )
            assert response.status == 200
    assert asked[0].endswith("/ws/pod/127/CA1?token=t")
    await runner.cleanup()


def _fallback_app(agent: Agent) -> web.Application:
    app = web.Application()
    app.router.add_get("/agent/voice/{provider}/callback/{call_sid}", agent.fallback_stream)
    return app
