"""Tells the router that the pod lives and which calls it holds: at the interval, and at once when that changes."""

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from trunkline.agent.router_api import HeartbeatReply, PodSuperseded, RouterApi, RouterUnavailable

log = logging.getLogger(__name__)

# After a failure it is tried again soon, then less often, never less than at the interval.
RETRY_FIRST_S = 0.5


class Heartbeats:
    """`describe` says what the pod is and holds at this moment; `hear` is given each answer."""

    def __init__(
        self,
        router: RouterApi,
        pod: str,
        interval_s: float,
        describe: Callable[[], dict[str, Any]],
        hear: Callable[[HeartbeatReply], None],
    ):
        self._router = router
        self._pod = pod
        self._interval_s = interval_s
        self._describe = describe
        self._hear = hear
        # Another boot id tells the router that the process before this one died with its calls.
        self._boot_id = uuid4().hex
        self._sequence = 0
        self._failures = 0
        self._is_superseded = False
        self._wanted = asyncio.Event()
        # When the router wants to hear from us again; 0: as usual.
        self._again_in_s = 0.0
        self._hurried: list[float] = []
        # One at a time, so that they leave in the order of their sequence numbers.
        self._turn = asyncio.Lock()

    def soon(self) -> None:
        """Something changed."""
        self._wanted.set()

    @contextmanager
    def more_often(self, every_s: float) -> Iterator[None]:
        """While something is waited for that the router's answers tell."""
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
        """One heartbeat; None if the router did not take it."""
        async with self._turn:
            self._sequence += 1
            body = self._describe() | {
                "boot_id": self._boot_id,
                "sequence": self._sequence,
                "interval_s": self._interval_s,
            }
            try:
                heard = await self._router.heartbeat(self._pod, body)
            except RouterUnavailable as error:
                self._report(error)
                return None
            if self._failures:
                log.info("pod %s: the router hears us again", self._pod)
            self._failures = 0
            self._is_superseded = False
            self._again_in_s = heard.again_in_s
            self._hear(heard)
            return heard

    def _report(self, error: RouterUnavailable) -> None:
        self._failures += 1
        self._is_superseded = isinstance(error, PodSuperseded)
        if self._is_superseded:
            # Every time: two processes of one name are a mistake that nobody but the operator can mend.
            log.error(
                "pod %s: another process has registered under this name, and this one is given no more calls: %s",
                self._pod,
                error,
            )
        elif self._failures == 1:
            log.warning("pod %s: the router does not hear us: %s", self._pod, error)

    async def _pause(self) -> None:
        wait_s = min(self._interval_s, self._again_in_s or self._interval_s, *self._hurried)
        if self._failures and not self._is_superseded:
            # Full jitter: a thousand pods must not come back in one moment.
            wait_s = random.uniform(0, min(wait_s, RETRY_FIRST_S * 2 ** min(self._failures, 10)))  # noqa: S311
        try:
            async with asyncio.timeout(wait_s):
                await self._wanted.wait()
        except TimeoutError:
            pass
