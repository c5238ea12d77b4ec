"""Many pods in one process, on one port, for demonstrations and tests. Each is a full agent.

Each pod records which calls it served and when: tests read these records, not the router's view, to prove that no pod
ever had two calls.
"""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from aiohttp import web

from trunkline.agent.agent import STREAM_PATH, Agent
from trunkline.agent.call import Call
from trunkline.agent.echo import converse
from trunkline.agent.settings import AgentSettings


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call at one pod, by the monotonic clock of the process. Without an end it is still live."""

    pod: str
    call_sid: str
    began_s: float
    ended_s: float | None
    # How many calls its pod may have at once.
    max_concurrent: int = 1


@dataclass(frozen=True, slots=True)
class Records:
    """The calls that the pods served. `overlaps` are pairs by which a pod exceeded its maximum: there must be none."""

    calls: list[CallRecord]
    overlaps: list[tuple[CallRecord, CallRecord]]


class SimulatedPods:
    """`async with SimulatedPods(5, router_url, api_key) as pods:` runs five registered pods."""

    def __init__(
        self,
        count: int,
        router_url: str,
        api_key: str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        name_prefix: str = "voice-agent",
        heartbeat_interval_s: float = 5.0,
    ):
        self._host = host
        self._port = port
        self._count = count
        self._name_prefix = name_prefix
        self._settings = AgentSettings(
            router_url=router_url,
            api_key=api_key,
            pod_ip=host,
            heartbeat_interval_s=heartbeat_interval_s,
            shutdown_timeout_s=5.0,
        )
        self._agents: dict[str, Agent] = {}
        self._records: list[CallRecord] = []
        self._runner: web.AppRunner | None = None

    @property
    def names(self) -> list[str]:
        return list(self._agents)

    @property
    def url(self) -> str:
        return f"ws://{self._host}:{self._port}"

    async def __aenter__(self) -> "SimulatedPods":
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Serve, and return when every pod is registered."""
        app = web.Application()
        app.router.add_get(STREAM_PATH, self._stream)
        app.router.add_get("/records", self._show_records)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()
        self._port = self._runner.addresses[0][1]
        self._agents = {agent.name: agent for agent in map(self._agent, range(self._count))}
        for agent in self._agents.values():
            agent.join()
        for agent in self._agents.values():
            await agent.registered.wait()

    async def stop(self) -> None:
        await asyncio.gather(*(agent.stop() for agent in self._agents.values()))
        if self._runner is not None:
            await self._runner.cleanup()

    def records(self) -> Records:
        calls = sorted(self._records, key=lambda record: (record.pod, record.began_s))
        return Records(calls, overlaps(calls))

    def _agent(self, number: int) -> Agent:
        name = f"{self._name_prefix}-{number}"
        settings = replace(self._settings, pod_name=name, base_url=self.url)

        async def handler(call: Call) -> None:
            await self._talk(name, call)

        return Agent(handler, settings, port=self._port)

    async def _talk(self, pod: str, call: Call) -> None:
        """Send the audio back, until the person hangs up."""
        record = CallRecord(pod, call.call_sid, time.monotonic(), None, self._agents[pod].max_concurrent)
        place = len(self._records)
        self._records.append(record)
        try:
            await converse(call)
        finally:
            self._records[place] = replace(record, ended_s=time.monotonic())

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        agent = self._agents.get(request.match_info["pod"])
        if agent is None:
            raise web.HTTPNotFound(text="no such pod")
        return await agent.stream(request)

    async def _show_records(self, request: web.Request) -> web.Response:
        return web.json_response(asdict(self.records()))


def overlaps(records: Iterable[CallRecord]) -> list[tuple[CallRecord, CallRecord]]:
    """Pairs of concurrent calls by which a pod exceeded its maximum. The records are ordered by pod and beginning."""
    pairs: list[tuple[CallRecord, CallRecord]] = []
    live: list[CallRecord] = []
    for record in records:
        live = [other for other in live if other.pod == record.pod and _ends_after(other, record.began_s)]
        if len(live) >= record.max_concurrent:
            pairs.append((live[-1], record))
        live.append(record)
    return pairs


def _ends_after(record: CallRecord, moment_s: float) -> bool:
    return record.ended_s is None or record.ended_s > moment_s
