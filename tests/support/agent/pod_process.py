"""A process of agent pods: honest agents of the library that write down every call they truly have.

    python -m tests.support.agent.pod_process <router url> <API key> <version> <log file> <name> [<name> …]

SIGTERM drains and ends it, as a rollout does. SIGUSR1 makes it refuse every stream, SIGUSR2 leave every handshake
unanswered, SIGWINCH swallow the cancellation of its calls, while its heartbeats go on; SIGHUP makes it well again.
"""

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import uvloop
from aiohttp import web

from tests.support.agent.pod_records import PodEvent
from trunkline.agent.agent import STREAM_PATH, Agent
from trunkline.agent.call import Call
from trunkline.agent.echo import converse
from trunkline.agent.settings import AgentSettings

HOST = "127.0.0.1"
# How long the handler of a call goes on that swallows its cancellation.
STUBBORN_S = 3.0


class PodLog:
    """A line for every event, in the file before anything else happens: a killed process has said all it knew."""

    def __init__(self, path: Path):
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, pod: str, what: str, call: str = "") -> None:
        os.write(self._file, msgspec.json.encode(PodEvent(pod, what, time.time(), call)) + b"\n")


class Pods:
    def __init__(self, router_url: str, api_key: str, log: PodLog, version: str, names: Sequence[str]):
        self._log = log
        # Nothing else is said: the heartbeat is the library's own.
        self._settings = [
            AgentSettings(router_url=router_url, api_key=api_key, pod_ip=HOST, pod_name=name)
            for name in names
        ]
        self._version = version
        self._agents: dict[str, Agent] = {}
        self.illness = ""

    async def run(self) -> None:
        leaving = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, leaving.set)
        for number, illness in (
            (signal.SIGUSR1, "refuses"),
            (signal.SIGUSR2, "is silent"),
            (signal.SIGWINCH, "is stubborn"),
            (signal.SIGHUP, ""),
        ):
            loop.add_signal_handler(number, self._fall_ill, illness)
        app = web.Application()
        app.router.add_get(STREAM_PATH, self._stream)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, HOST, 0).start()
        port = runner.addresses[0][1]
        self._agents = {one.pod_name: self._agent(one, port) for one in self._settings}
        for agent in self._agents.values():
            agent.join()
        for name, agent in self._agents.items():
            await agent.registered.wait()
            self._log.write(name, "registered")
        await leaving.wait()
        for name in self._agents:
            self._log.write(name, "leaving")
        await asyncio.gather(*(agent.stop() for agent in self._agents.values()))
        await runner.cleanup()

    def _agent(self, settings: AgentSettings, port: int) -> Agent:
        async def handler(call: Call) -> None:
            self._log.write(settings.pod_name, "began", call.call_sid)
            try:
                await converse(call)
            except asyncio.CancelledError:
                if self.illness != "is stubborn":
                    raise
                await asyncio.sleep(STUBBORN_S)
            finally:
                self._log.write(settings.pod_name, "ended", call.call_sid)

        return Agent(handler, settings, port=port, version=self._version)

    def _fall_ill(self, illness: str) -> None:
        self.illness = illness
        for name in self._agents:
            self._log.write(name, "ill" if illness else "well")

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        match self.illness:
            case "refuses":
                raise web.HTTPServiceUnavailable
            case "is silent":
                await asyncio.sleep(60)
        agent = self._agents.get(request.match_info["pod"])
        if agent is None:
            raise web.HTTPNotFound(text="no such pod")
        return await agent.stream(request)


def main(router_url: str, api_key: str, version: str, log: str, *names: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    uvloop.run(Pods(router_url, api_key, PodLog(Path(log)), version, names).run())


if __name__ == "__main__":
    main(*sys.argv[1:])
