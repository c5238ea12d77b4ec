"""One call at this pod: its handler, the task that reads its socket, and how the two end.

When a stream closes, the carrier requests the next document. If the call was released, the carrier hangs up. If it
was not, the call has lost its agent, and gets another one. So an agent that has finished a call releases it first and
closes the stream afterwards, and one that fails only closes the stream.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Literal

from trunkline.agent.call import Call
from trunkline.handlers import where

log = logging.getLogger(__name__)

Handler = Callable[[Call], Coroutine[Any, Any, None]]
# finished: the agent or the carrier has ended the call. lost: the person may still be there, without an agent.
# superseded: the carrier connected a later stream of the same call, and this one is ignored.
Ending = Literal["finished", "lost", "superseded"]
Order = Literal["stop", "hand_over", "superseded"]

# How long a handler may run on after its stream has ended.
FINISH_TIMEOUT_S = 30.0
# A cancelled handler that has not ended by then counts as hanging.
CANCEL_TIMEOUT_S = 5.0
# Close codes of RFC 6455 and its registry: this end failed, this end is restarted.
FAILED = 1011
RESTARTED = 1012


class Session:
    def __init__(self, call: Call, handler: Handler, pod: str):
        self.call = call
        # While the call is being handed over to another pod.
        self.is_handing_over = False
        self._pod = pod
        self._handler = handler
        self._order: Order | None = None
        self._ordered = asyncio.Event()
        self._handling: asyncio.Task[None] | None = None

    @property
    def hanging(self) -> "asyncio.Task[None] | None":
        """The handler, if it was cancelled and has not ended."""
        return self._handling if self._handling is not None and not self._handling.done() else None

    def is_run_by(self, task: "asyncio.Task[Any] | None") -> bool:
        return task is not None and self._handling is task

    def order(self, order: Order) -> None:
        """End the call, whatever the handler is doing. The first order counts."""
        if self._order is None:
            self._order = order
            self._ordered.set()

    async def run(self) -> Ending:
        """Returns when the call has ended at this pod, or its handler hangs."""
        handling = self._handling = asyncio.create_task(self._handler(self.call))
        handling.add_done_callback(self._log_failure)
        listening = asyncio.create_task(self.call.listen())
        ordered = asyncio.create_task(self._ordered.wait())
        await asyncio.wait([handling, listening, ordered], return_when=asyncio.FIRST_COMPLETED)
        if listening.done() and not handling.done():
            await asyncio.wait(
                [handling, ordered], timeout=FINISH_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
            )
        ending = self._ending(handling, is_over=listening.done())
        await self._close(ending)
        await _cancelled(handling, CANCEL_TIMEOUT_S)
        await _cancelled(listening, CANCEL_TIMEOUT_S)
        ordered.cancel()
        if ending == "finished":
            await self.call.release()
        if self.hanging is not None:
            log.error(
                "pod %s: the handler of %s was cancelled and does not end, at %s; "
                "until it does the pod has one call less",
                self._pod,
                self.call.call_sid,
                where(self.hanging),
            )
        return ending

    def _ending(self, handling: "asyncio.Task[None]", *, is_over: bool) -> Ending:
        if self._order == "superseded":
            return "superseded"
        if not self.call.is_resumable:
            return "finished"
        if self._order == "hand_over":
            return "lost"
        if is_over:
            return "lost" if self.call.lost else "finished"
        return "lost" if _has_failed(handling) else "finished"

    async def _close(self, ending: Ending) -> None:
        if self.call.over:
            return
        if ending == "finished":
            await self.call.release()
            await self.call.close()
        else:
            await self.call.close(FAILED if self._order is None else RESTARTED)

    def _log_failure(self, handling: "asyncio.Task[None]") -> None:
        if not handling.cancelled() and (error := handling.exception()) is not None:
            log.error("pod %s: the handler of %s failed", self._pod, self.call.call_sid, exc_info=error)


def _has_failed(handling: "asyncio.Task[None]") -> bool:
    return handling.done() and (handling.cancelled() or handling.exception() is not None)


async def _cancelled(task: "asyncio.Task[None]", timeout_s: float) -> None:
    task.cancel()
    await asyncio.wait([task], timeout=timeout_s)
