"""A pod that takes calls: it serves streams, keeps the router informed, and leaves without dropping anybody."""

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from typing import Any

from aiohttp import WSMsgType, web

from trunkline import __version__
from trunkline.agent import frames
from trunkline.agent.call import Call
from trunkline.agent.contract import Contract
from trunkline.agent.frames import Start
from trunkline.agent.guard import FORBIDDEN, Guard, Refused
from trunkline.agent.heartbeats import Heartbeats
from trunkline.agent.router_api import Heard, RouterApi, RouterUnavailable
from trunkline.agent.settings import AgentSettings

log = logging.getLogger(__name__)

Handler = Callable[[Call], Coroutine[Any, Any, None]]

STREAM_PATH = "/ws/pod/{pod}/{call_sid}"
FALLBACK_PATH = "/agent/voice/{provider}/callback/{call_sid}"
# A carrier says whose call it is in its first frames; a socket that does not is somebody else.
START_TIMEOUT_S = 10.0
# Sockets that have not said yet whose call they are. They cost memory and are not authenticated.
STRANGERS_MAX = 32
# What a handler may still do after its stream is over.
FINISH_TIMEOUT_S = 30.0
# A call that was given this pod just before it began to leave connects within this.
CONNECT_TIMEOUT_S = 10.0
PING_INTERVAL_S = 30.0
# A carrier that does not answer a close is not waited for: the pod is wanted by others.
CLOSE_TIMEOUT_S = 3.0
FRAME_MAX_BYTES = 256 * 1024


class Agent:
    """How many calls it takes at once is the router's word, by the pod's tier: 1 for an exclusive one. `max_concurrent`
    is the most that this pod can bear, whatever the router says."""

    def __init__(
        self,
        handler: Handler,
        settings: AgentSettings | None = None,
        *,
        max_concurrent: int | None = None,
        port: int = 8080,
        version: str = __version__,
    ):
        self.settings = settings or AgentSettings.from_env()
        self.port = port
        self.registered = asyncio.Event()
        self._handler = handler
        self._version = version
        self._max_concurrent = max_concurrent
        self._guard = Guard(1 if max_concurrent is None else max_concurrent)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._strangers = 0
        self._changed = asyncio.Event()
        self._draining = False
        settings = self.settings
        self._router = RouterApi(settings.router_url, settings.api_key, settings.router_timeout_s)
        self._heartbeats = Heartbeats(
            self._router, settings.pod_name, settings.heartbeat_interval_s, self._describe, self._hear
        )
        self._beating: asyncio.Task[None] | None = None
        self._runner: web.AppRunner | None = None

    @property
    def name(self) -> str:
        return self.settings.pod_name

    @property
    def max_concurrent(self) -> int:
        return self._guard.max_concurrent

    @property
    def live_calls(self) -> list[str]:
        return self._guard.live

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then drain. A second signal ends the process at once."""
        asked = asyncio.Event()
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, asked.set)
        try:
            await self.start()
            await asked.wait()
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
            await self.stop()

    async def start(self) -> None:
        """Serve streams on this pod's own address, then join the router."""
        app = web.Application()
        app.router.add_get(STREAM_PATH, self.stream)
        if self.settings.accepts_fallback:
            app.router.add_get(FALLBACK_PATH, self.fallback_stream)
        app.router.add_get("/health", _health)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.settings.pod_ip, self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self.join()

    def join(self) -> None:
        """Begin the heartbeats. Where somebody else serves `stream`, this is all that starting takes."""
        self._beating = asyncio.create_task(self._heartbeats.run())

    async def stop(self) -> None:
        """Drain, then let go of everything."""
        await self.drain()
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait([self._beating])
        # The last word: free of calls and leaving, so the router does not wait for the heartbeat to run out.
        await self._heartbeats.beat()
        if self._runner is not None:
            await self._runner.cleanup()
        await self._router.close()

    async def drain(self) -> None:
        """Take no new calls, and wait for the live ones until the limit; then end them."""
        self._draining = True
        heard = await self._heartbeats.beat()
        self._guard.leave(heard.calls if heard else ())
        await self._until(lambda: not self._guard.expected, CONNECT_TIMEOUT_S)
        if not await self._until(lambda: not self._running, self.settings.shutdown_timeout_s):
            log.warning("pod %s: %d calls outlast the shutdown limit", self.name, len(self._running))
            for task in self._running.values():
                task.cancel()
            await self._until(lambda: not self._running, CONNECT_TIMEOUT_S)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """The WebSocket of one call."""
        if request.match_info["pod"] != self.name:
            raise web.HTTPNotFound(text="this is another pod")
        return await self._take(request, needs_token=True)

    async def fallback_stream(self, request: web.Request) -> web.StreamResponse:
        """The WebSocket of a call that was routed without the router. The pod's maximum holds for it too."""
        return await self._take(request, needs_token=False)

    async def _take(self, request: web.Request, *, needs_token: bool) -> web.StreamResponse:
        if self._strangers >= STRANGERS_MAX:
            raise web.HTTPServiceUnavailable(text="too many streams without a start")
        socket = web.WebSocketResponse(
            timeout=CLOSE_TIMEOUT_S, heartbeat=PING_INTERVAL_S, max_msg_size=FRAME_MAX_BYTES
        )
        await socket.prepare(request)
        call = await self._admitted(
            socket, request.match_info["call_sid"], dict(request.query), needs_token=needs_token
        )
        if call is not None:
            await self._serve(call)
            await socket.close()
        return socket

    async def _admitted(
        self, socket: web.WebSocketResponse, call_sid: str, query: dict[str, str], *, needs_token: bool
    ) -> Call | None:
        """The call, if this pod takes it; else the socket is closed with the reason."""
        start = await self._first_frame(socket)
        if start is None or start.call_sid != call_sid:
            refused = Refused("no start of the call that the address names", FORBIDDEN)
        else:
            # Twilio tells parameters in the start, the others in the address.
            parameters = query | dict(start.parameters)
            token = parameters.pop("token", "")
            verdict = self._guard.admit(call_sid, token) if needs_token else self._guard.admit_stray(call_sid)
            if not isinstance(verdict, Refused):
                return Call(socket, start, parameters, self._contract(call_sid, parameters))
            refused = verdict
        log.warning("pod %s: refused a stream: %s", self.name, refused.reason)
        await socket.close(code=refused.close_code, message=refused.reason.encode())
        return None

    def _contract(self, call_sid: str, parameters: dict[str, str]) -> Contract:
        return Contract(self.settings.platform_url or self.settings.router_url, call_sid, parameters)

    async def _first_frame(self, socket: web.WebSocketResponse) -> Start | None:
        self._strangers += 1
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                async for message in socket:
                    frame = frames.parse(message.data) if message.type is WSMsgType.TEXT else None
                    if isinstance(frame, Start):
                        return frame
        except TimeoutError:
            pass
        finally:
            self._strangers -= 1
        return None

    async def _serve(self, call: Call) -> None:
        """From the moment the call is admitted until it is released, whatever happens in between."""
        task = asyncio.create_task(self._handle(call))
        self._running[call.call_sid] = task
        self._heartbeats.soon()
        self._changed.set()
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
            await asyncio.wait([task])
            self._guard.let_go(call.call_sid)
            self._heartbeats.soon()
            await self._release(call)
            del self._running[call.call_sid]
            self._changed.set()

    async def _handle(self, call: Call) -> None:
        """The handler and the listening beside it. When either ends, so does the stream."""
        handler = asyncio.create_task(self._handler(call))
        listener = asyncio.create_task(call.listen())
        try:
            await asyncio.wait([handler, listener], return_when=asyncio.FIRST_COMPLETED)
            if not handler.done():
                await asyncio.wait([handler], timeout=FINISH_TIMEOUT_S)
        finally:
            handler.cancel()
            if not call.over:
                await call.hang_up()
            listener.cancel()
            await asyncio.wait([handler, listener])
            if not handler.cancelled() and (error := handler.exception()) is not None:
                log.error("pod %s: the handler of %s failed", self.name, call.call_sid, exc_info=error)

    async def _release(self, call: Call) -> None:
        """Tried once: if it does not arrive, the next heartbeat says the same."""
        try:
            await self._router.release(call.call_sid, self.name)
        except RouterUnavailable as error:
            log.warning("pod %s: release of %s: %s", self.name, call.call_sid, error)

    def _describe(self) -> dict[str, Any]:
        return {
            "ip": self.settings.pod_ip,
            "port": self.port,
            "version": self._version,
            "base_url": self.settings.base_url,
            "calls": self._guard.live,
            "draining": self._draining,
        }

    def _hear(self, heard: Heard) -> None:
        self._guard.trust(heard.secrets)
        if heard.max_concurrent:
            most = self._max_concurrent
            self._guard.limit(heard.max_concurrent if most is None else min(most, heard.max_concurrent))
        self.registered.set()

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until calls have come or gone so that the condition holds; False if that took too long."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True


async def _health(request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})
