"""Limits of concurrent pre-checks: only leads of the same merchant wait for a tenant's slow system.

A lead that waits for its turn is not claimed yet, so no lease expires in a queue.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import UUID
from weakref import WeakValueDictionary

# Fewer than the connections of a process to one host: a request that waited for a connection would use up its own
# time-out, and a slow host would seem to be silent.
CONCURRENCY_PER_HOST = 8
# Fewer than the limit of a host: several merchants may use one host, each on a path of its own.
CONCURRENCY_PER_MERCHANT = 6

_Limit = asyncio.Semaphore


class PrecheckConcurrency:
    def __init__(self) -> None:
        self._merchants: WeakValueDictionary[str, _Limit] = WeakValueDictionary()
        self._hosts: WeakValueDictionary[str, _Limit] = WeakValueDictionary()
        self._leads: set[UUID] = set()
        self._pending: Counter[str] = Counter()

    def is_pending(self, lead_id: UUID) -> bool:
        """Whether a check of this lead is running, or waiting for its turn."""
        return lead_id in self._leads

    def pending(self, merchant_id: str) -> int:
        """How many leads of a merchant are running or waiting."""
        return self._pending[merchant_id]

    @asynccontextmanager
    async def turn(self, lead_id: UUID, merchant_id: str, hosts: Iterable[str]) -> AsyncIterator[None]:
        """Wait for a turn. Merchants first, then hosts by name: one order, so there is no deadlock."""
        self._leads.add(lead_id)
        self._pending[merchant_id] += 1
        try:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(
                    _limit(self._merchants, merchant_id, CONCURRENCY_PER_MERCHANT)
                )
                for host in sorted(set(hosts)):
                    await stack.enter_async_context(_limit(self._hosts, host, CONCURRENCY_PER_HOST))
                yield
        finally:
            self._leads.discard(lead_id)
            self._pending[merchant_id] -= 1
            if not self._pending[merchant_id]:
                del self._pending[merchant_id]


def _limit(limits: "WeakValueDictionary[str, _Limit]", name: str, size: int) -> _Limit:
    return limits.setdefault(name, _Limit(size))
