"""Sends the pod's heartbeats with its calls to the router: at the interval, and at once when the calls change."""

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from uuid import uuid4

from trunkline.agent.router_api import PodSuperseded, RouterApi, RouterUnavailable
from trunkline.schema.router import AgentHeartbeat, HeartbeatReply

log = logging.getLogger(__name__)

# The first wait after a failure; it doubles up to the interval.
RETRY_FIRST_S = 0.5


class Heartbeats:
    """`describe` returns the present body; `on_reply` gets each reply."""

    def __init__(
        self,
        router: RouterApi,
        pod: str,
        interval_s: float,
        describe: Callable[[], AgentHeartbeat],
        on_reply: Callable[[HeartbeatReply], None],
    ):
        self._router = router
        self._pod = pod
        self._interval_s = interval_s
        self._describe = describe
        self._on_reply = on_reply
        # By another boot id the router knows that the process before this one died with its calls.
        self._boot_id = uuid4().hex
        self._sequence = 0
        self._failures = 0
        self._is_superseded = False
        self._wanted = asyncio.Event()
        # When the router wants the next heartbeat; 0: at the interval.
        self._again_in_s = 0.0
        self._hurried: list[float] = []
        # One at a time, so that they are sent in the order of their sequence numbers.
        self._send_lock = asyncio.Lock()

    def soon(self) -> None:
        """The body changed: send a heartbeat now."""
        self._wanted.set()

    @contextmanager
    def more_often(self, every_s: float) -> Iterator[None]:
        """Shorten the interval while the agent waits for a change in the router's replies."""
        self._hurried.append(every_s)
        self.soon()
        try:
            yield
        finally:
            self._hurried.remove(every_s)

    async def run(self) -> None:
        while True:
            self._wanted.clear()
            await self.beat()
            await self._pause()

    async def beat(self) -> HeartbeatReply | None:
        """One heartbeat; None if the router did not accept it."""
        async with self._send_lock:
            self._sequence += 1
            beat = replace(
                self._describe(),
                boot_id=self._boot_id,
                sequence=self._sequence,
                interval_s=self._interval_s,
            )
            try:
                reply = await self._router.heartbeat(self._pod, beat)
            except RouterUnavailable as error:
                self._report(error)
                return None
            if self._failures:
                log.info("pod %s: the router accepts heartbeats again", self._pod)
            self._failures = 0
            self._is_superseded = False
            self._again_in_s = reply.again_in_s
            self._on_reply(reply)
            return reply

    def _report(self, error: RouterUnavailable) -> None:
        self._failures += 1
        self._is_superseded = isinstance(error, PodSuperseded)
        if self._is_superseded:
            # Every time: two processes of one name are a mistake that only the operator can fix.
            log.error(
                "pod %s: another process has registered under this name, and this one gets no more calls: %s",
                self._pod,
                error,
            )
        elif self._failures == 1:
            log.warning("pod %s: the router does not accept heartbeats: %s", self._pod, error)

    async def _pause(self) -> None:
        wait_s = min(self._interval_s, self._again_in_s or self._interval_s, *self._hurried)
        if self._failures and not self._is_superseded:
            # Full jitter: a thousand pods must not retry at the same time.
            wait_s = random.uniform(0, min(wait_s, RETRY_FIRST_S * 2 ** min(self._failures, 10)))  # noqa: S311
        try:
            async with asyncio.timeout(wait_s):
                await self._wanted.wait()
        except TimeoutError:
            pass
