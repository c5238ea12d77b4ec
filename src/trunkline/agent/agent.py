"""A pod that takes calls: it serves streams, sends heartbeats to the router, and shuts down without dropping calls."""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import WSMsgType, web

from trunkline import __version__
from trunkline.agent import frames
from trunkline.agent.call import Call
from trunkline.agent.contract import Contract
from trunkline.agent.frames import Start
from trunkline.agent.guard import BUSY, FORBIDDEN, Finished, Guard, StreamAdmitted, StreamRefused
from trunkline.agent.heartbeats import Heartbeats
from trunkline.agent.router_api import RouterApi, RouterUnavailable
from trunkline.agent.session import CANCEL_TIMEOUT_S, Handler, Session
from trunkline.agent.settings import AgentSettings
from trunkline.handlers import LoopWatch, leave_behind, refusal, where
from trunkline.schema.router import AgentHeartbeat, HeartbeatReply

log = logging.getLogger(__name__)

HandOver = Callable[[Call], Awaitable[None]]

STREAM_PATH = "/ws/pod/{pod}/{call_sid}"
FALLBACK_PATH = "/agent/voice/{provider}/callback/{call_sid}"
# A carrier's first frames name the call; a socket without such a frame is not a carrier's.
START_TIMEOUT_S = 10.0
# Sockets before their start frame. They cost memory and are not authenticated.
UNIDENTIFIED_MAX = 32
# How long heartbeats name a call whose stream was lost here: by then the carrier has requested another agent, or the
# person has hung up.
RESUME_WAIT_S = 10.0
RESUME_POLL_S = 1.0
# How long before the limit of a drain the pod hands its live calls over to other pods.
HAND_OVER_MARGIN_S = 20.0
# How long storing the state of one of them may take.
HAND_OVER_HOOK_S = 5.0
# For how many intervals heartbeats name ended calls: for a short call whose release was lost it is the only report.
ENDED_INTERVALS = 4
# The pause between tries of a release, which go on for as long as one request may take, before the stream is closed.
RELEASE_PAUSE_S = 0.2
# A call that got this pod just before it began to leave connects within this.
CONNECT_TIMEOUT_S = 10.0
# The longest call, until the router reports it: the platform's own default.
CALL_TIME_LIMIT_S = 3600.0
# How much longer than the longest call a leaving pod waits, and the minimum.
SHUTDOWN_MARGIN_S = 60.0
SHUTDOWN_LEAST_S = 300.0
PING_INTERVAL_S = 30.0
# A handler that blocks the event loop for this long is logged. The router removes a pod after three missed heartbeats.
BLOCKED_S = 5.0
# How long the pod waits for a carrier to answer a close: its slot is needed for other calls.
CLOSE_TIMEOUT_S = 3.0
# By then the stream of a released call is closed, and its handler cancelled.
CLOSING_TIMEOUT_S = CLOSE_TIMEOUT_S + CANCEL_TIMEOUT_S
FRAME_MAX_BYTES = 256 * 1024


class Agent:
    """The router sets how many calls it takes at once, by the pod's tier: 1 for an exclusive one. `max_concurrent` is
    the pod's own upper limit. `on_hand_over` stores the state of a call before it is handed over to another pod."""

    def __init__(
        self,
        handler: Handler,
        settings: AgentSettings | None = None,
        *,
        max_concurrent: int | None = None,
        port: int = 8080,
        version: str = __version__,
        on_hand_over: HandOver | None = None,
    ):
        _check("handler", handler)
        if on_hand_over is not None:
            _check("on_hand_over", on_hand_over)
        self.settings = settings or AgentSettings.from_env()
        self.port = port
        self.registered = asyncio.Event()
        self._handler = handler
        self._on_hand_over = on_hand_over
        self._version = version
        self._max_concurrent = max_concurrent
        self._guard = Guard(1 if max_concurrent is None else max_concurrent)
        self._running: dict[tuple[str, int], Session] = {}
        # The calls that have this pod, by the router's last reply; None before the first.
        self._given: frozenset[str] | None = None
        self._unidentified = 0
        self._changed = asyncio.Event()
        self._draining = False
        self._call_time_limit_s = CALL_TIME_LIMIT_S
        settings = self.settings
        self._router = RouterApi(settings.router_url, settings.api_key, settings.router_timeout_s)
        self._heartbeats = Heartbeats(
            self._router, settings.pod_name, settings.heartbeat_interval_s, self._describe, self._on_reply
        )
        self._beating: asyncio.Task[None] | None = None
        self._runner: web.AppRunner | None = None
        # Cancelled handlers that have not ended, and their calls.
        self._hanging: dict[asyncio.Task[None], str] = {}
        self._watch = LoopWatch(BLOCKED_S, self._blocked)

    @property
    def name(self) -> str:
        return self.settings.pod_name

    @property
    def max_concurrent(self) -> int:
        return self._guard.max_concurrent

    @property
    def live_calls(self) -> list[str]:
        return self._guard.live

    @property
    def shutdown_timeout_s(self) -> float:
        """How long live calls may go on once the pod leaves. By default longer than the platform's longest call."""
        configured_s = self.settings.shutdown_timeout_s
        if configured_s is not None:
            return configured_s
        return max(SHUTDOWN_LEAST_S, self._call_time_limit_s + SHUTDOWN_MARGIN_S)

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then drain. A second signal ends the process at once."""
        stop_requested = asyncio.Event()
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, stop_requested.set)
        try:
            await self.start()
            await stop_requested.wait()
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
            await self.stop()

    async def start(self) -> None:
        """Serve streams on this pod's own address, then register with the router."""
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
        """Begin the heartbeats. If another server serves `stream`, this is all that starting takes."""
        self._beating = asyncio.create_task(self._heartbeats.run())
        self._watch.start()

    async def stop(self) -> None:
        """Drain, then close everything. Handlers that do not end are logged and abandoned."""
        await self.drain()
        self._watch.stop()
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait([self._beating])
        # The last heartbeat, without calls and leaving, so that the router does not wait for its timeout.
        await self._heartbeats.beat()
        if self._runner is not None:
            await self._runner.cleanup()
        await self._router.close()
        for handling, call_sid in self._hanging.items():
            log.error("pod %s: leaves without the handler of %s, at %s", self.name, call_sid, where(handling))
            leave_behind(handling)

    async def drain(self) -> None:
        """Take no new calls, and wait for the live ones; shortly before the limit hand the remaining ones over to other
        pods, and at the limit end those that could not be handed over."""
        self._draining = True
        reply = await self._heartbeats.beat()
        self._guard.leave(reply.calls if reply else ())
        await self._until(lambda: not self._guard.expected, CONNECT_TIMEOUT_S)
        limit_s = self.shutdown_timeout_s
        margin_s = min(HAND_OVER_MARGIN_S, limit_s / 3)
        if await self._until(lambda: not self._running, limit_s - margin_s):
            return
        await self._hand_over(min(HAND_OVER_HOOK_S, margin_s / 3))
        if await self._until(lambda: not self._running, margin_s):
            return
        log.warning("pod %s: %d calls outlast the shutdown limit", self.name, len(self._running))
        for session in self._running.values():
            session.order("stop")
        await self._until(lambda: not self._running, CONNECT_TIMEOUT_S)

    async def _hand_over(self, hook_s: float) -> None:
        """Store the state for the next agent, report the handover to the router, and only then close the streams."""
        sessions = [each for each in self._running.values() if each.call.is_resumable and not each.call.over]
        if not sessions:
            return
        log.info("pod %s: %d calls are handed over", self.name, len(sessions))
        for session in sessions:
            session.is_handing_over = True
        await asyncio.gather(*(self._store_state(session.call, hook_s) for session in sessions))
        await self._heartbeats.beat()
        for session in sessions:
            session.order("hand_over")

    async def _store_state(self, call: Call, timeout_s: float) -> None:
        if self._on_hand_over is None:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._on_hand_over(call)
        except Exception:
            # Another agent takes the call over also without its newest state.
            log.exception("pod %s: the state of %s was not stored", self.name, call.call_sid)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """The WebSocket of one call."""
        if request.match_info["pod"] != self.name:
            raise web.HTTPNotFound(text="this is another pod")
        return await self._take(request, needs_token=True)

    async def fallback_stream(self, request: web.Request) -> web.StreamResponse:
        """The WebSocket of a call that was routed without the router. The pod's maximum holds for it too."""
        return await self._take(request, needs_token=False)

    async def _take(self, request: web.Request, *, needs_token: bool) -> web.StreamResponse:
        if self._unidentified >= UNIDENTIFIED_MAX:
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
        """The call, if this pod takes it; else None, and the socket is closed with the reason."""
        start = await self._first_frame(socket)
        if start is None or start.call_sid != call_sid:
            refused = StreamRefused("no start of the call that the address names", FORBIDDEN)
        else:
            # Twilio sends parameters in the start frame, the others in the URL.
            parameters = query | dict(start.parameters)
            token = parameters.pop("token", "")
            verdict = await self._admission(call_sid, token if needs_token else None)
            if isinstance(verdict, StreamAdmitted):
                return Call(
                    socket,
                    start,
                    parameters,
                    self._contract(call_sid, parameters),
                    allocation_id=verdict.allocation_id,
                    turn=verdict.turn,
                    release=self._release,
                )
            if isinstance(verdict, Finished):
                await self._send_release(call_sid, verdict.turn)
                verdict = StreamRefused("this agent is through with the call", FORBIDDEN)
            refused = verdict
        log.warning("pod %s: refused a stream: %s", self.name, refused.reason)
        await socket.close(code=refused.close_code, message=refused.reason.encode())
        return None

    async def _admission(self, call_sid: str, token: str | None) -> StreamAdmitted | Finished | StreamRefused:
        """A call is released before its stream closes, and a carrier may be slow to close it. A call that got the pod
        in between waits for that instead of being refused."""

        def admit() -> StreamAdmitted | Finished | StreamRefused:
            if token is None:
                return self._guard.admit_fallback(call_sid)
            return self._guard.admit(call_sid, token)

        verdict = admit()
        if (
            isinstance(verdict, StreamRefused)
            and verdict.close_code == BUSY
            and self._guard.is_closing_stream
        ):
            await self._until(lambda: not self._guard.is_closing_stream, CLOSING_TIMEOUT_S)
            verdict = admit()
        return verdict

    def _contract(self, call_sid: str, parameters: dict[str, str]) -> Contract:
        return Contract(self.settings.platform_url or self.settings.router_url, call_sid, parameters)

    async def _first_frame(self, socket: web.WebSocketResponse) -> Start | None:
        self._unidentified += 1
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                async for message in socket:
                    frame = frames.parse(message.data) if message.type is WSMsgType.TEXT else None
                    if isinstance(frame, Start):
                        return frame
        except TimeoutError:
            pass
        finally:
            self._unidentified -= 1
        return None

    async def _serve(self, call: Call) -> None:
        """From the admission of the call until its slot is free, whatever happens in between."""
        for (call_sid, _), earlier in self._running.items():
            if call_sid == call.call_sid:
                earlier.order("superseded")
        session = self._running[call.call_sid, call.turn] = Session(call, self._handler, self.name)
        serving = asyncio.create_task(self._follow(session))
        self._heartbeats.soon()
        self._changed.set()
        try:
            await asyncio.wait([serving])
        except asyncio.CancelledError:
            session.order("stop")
            await asyncio.wait([serving])
            raise

    async def _follow(self, session: Session) -> None:
        call = session.call
        try:
            ending = await session.run()
            if ending == "lost" and not await self._has_moved(call):
                # The guard does not mark it as finished: should the carrier come back after all, the call is taken.
                await self._send_release(call.call_sid, call.turn)
        finally:
            self._free_slot(session)
            del self._running[call.call_sid, call.turn]
            self._heartbeats.soon()
            self._changed.set()

    def _free_slot(self, session: Session) -> None:
        call, handling = session.call, session.hanging
        if handling is None:
            self._guard.release(call.call_sid, call.turn)
            return
        self._guard.hang(call.call_sid, call.turn)
        self._hanging[handling] = call.call_sid

        def ended(_: "asyncio.Task[None]") -> None:
            self._hanging.pop(handling, None)
            log.warning("pod %s: the handler of %s has ended after all", self.name, call.call_sid)
            self._guard.unhang(call.call_sid)
            self._heartbeats.soon()

        handling.add_done_callback(ended)

    def _blocked(self, task: "asyncio.Task[Any] | None", for_s: float, place: str) -> None:
        """Called from another thread while the event loop is blocked, and sends no heartbeats either."""
        calls = [each.call.call_sid for each in list(self._running.values()) if each.is_run_by(task)]
        log.error(
            "pod %s: the event loop has been blocked for %.1f s by %s, at %s",
            self.name,
            for_s,
            f"the handler of {calls[0]}" if calls else "something that is no handler",
            place,
        )

    async def _has_moved(self, call: Call) -> bool:
        """Wait until another stream has the call, here or at another pod. Until then heartbeats name it: the router
        ends a call that its pod names no more."""
        self._given = None

        def is_elsewhere() -> bool:
            is_given_here = self._given is None or call.call_sid in self._given
            return not (self._guard.is_current(call.call_sid, call.turn) and is_given_here)

        with self._heartbeats.more_often(RESUME_POLL_S):
            return await self._until(is_elsewhere, RESUME_WAIT_S)

    async def _release(self, call: Call) -> None:
        """Before the stream closes. If the request is lost, the next heartbeat reports the end too."""
        self._guard.finish(call.allocation_id)
        await self._send_release(call.call_sid, call.turn)

    async def _send_release(self, call_sid: str, turn: int) -> None:
        problem = "no answer"
        try:
            async with asyncio.timeout(self.settings.router_timeout_s):
                while True:
                    try:
                        await self._router.release(call_sid, self.name, turn)
                    except RouterUnavailable as error:
                        problem = str(error)
                    else:
                        return
                    await asyncio.sleep(RELEASE_PAUSE_S)
        except TimeoutError:
            log.warning("pod %s: release of %s: %s", self.name, call_sid, problem)

    def _describe(self) -> AgentHeartbeat:
        handing_over = [each.call.call_sid for each in self._running.values() if each.is_handing_over]
        return AgentHeartbeat(
            ip=self.settings.pod_ip,
            port=self.port,
            version=self._version,
            base_url=self.settings.base_url,
            calls=self._guard.live,
            ended=self._guard.ended(ENDED_INTERVALS * self.settings.heartbeat_interval_s),
            hanging=self._guard.hanging,
            handing_over=sorted(handing_over),
            draining=self._draining or self._guard.is_stuck,
        )

    def _on_reply(self, reply: HeartbeatReply) -> None:
        self._guard.trust([bytes.fromhex(secret) for secret in reply.stream_secrets])
        self._given = frozenset(reply.calls)
        self._changed.set()
        if reply.max_concurrent:
            most = self._max_concurrent
            self._guard.limit(reply.max_concurrent if most is None else min(most, reply.max_concurrent))
        self._call_time_limit_s = reply.call_time_limit_s or self._call_time_limit_s
        self.registered.set()

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until the condition holds, checked whenever calls come or go; False after the timeout."""
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


def _check(name: str, function: Callable[..., Any]) -> None:
    """A plain function would run, and fail when its result is awaited: at the first call instead of at the start."""
    if (reason := refusal(function)) is not None:
        raise TypeError(f"{name} must be an async function: {reason}")
