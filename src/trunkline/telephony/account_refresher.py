"""Reads the accounts again on demand: one may have been added, or its token replaced, since this process read them
last.

Every process reads all accounts every five seconds. In between, one process may dial with an account whose webhooks
another would refuse, and then the carrier hangs up on the person. So before a process refuses a webhook whose URL the
platform signed, but whose account or signature it cannot verify, it reads the accounts once more. All webhooks that
wait share one reading; the next follows after 0.25 s at the earliest, and readings take at most 20 % of the time.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

INTERVAL_S = 0.25
# A part of the 1.2 s within which an answer webhook gets its response.
WAIT_MAX_S = 0.5
SHARE_MAX = 0.2

RefreshResult = Literal["looked", "unavailable"]


class AccountRefresher:
    def __init__(
        self,
        refresh: Callable[[], Awaitable[object]],
        *,
        interval_s: float = INTERVAL_S,
        wait_max_s: float = WAIT_MAX_S,
    ):
        self._refresh = refresh
        self._interval_s = interval_s
        self._wait_max_s = wait_max_s
        self._next_s = 0.0
        self._reading: asyncio.Task[RefreshResult] | None = None
        # The reading that has not begun yet: it serves callers that come now; one that is under way does not.
        self._due: asyncio.Task[RefreshResult] | None = None

    async def again(self) -> RefreshResult:
        """Returns after a new reading of the accounts, or after the timeout."""
        due = self._due
        if due is None:
            due = self._due = asyncio.create_task(self._read())
        await asyncio.wait({due}, timeout=self._wait_max_s)
        result: RefreshResult = due.result() if due.done() and not due.cancelled() else "unavailable"
        metrics.ACCOUNT_LOOKS.labels(result).inc()
        return result

    async def _read(self) -> RefreshResult:
        loop = asyncio.get_running_loop()
        before = self._reading
        if before is not None:
            await asyncio.wait({before})
        await asyncio.sleep(max(0.0, self._next_s - loop.time()))
        self._reading, self._due = self._due, None
        began_s = loop.time()
        try:
            await self._refresh()
            return "looked"
        except Exception as error:  # whatever it is, the webhook is verified by the accounts read before
            log.warning("account.refresh_failed", error=str(error) or type(error).__name__)
            return "unavailable"
        finally:
            took_s = loop.time() - began_s
            self._next_s = began_s + max(self._interval_s, took_s / SHARE_MAX)
            self._reading = None
