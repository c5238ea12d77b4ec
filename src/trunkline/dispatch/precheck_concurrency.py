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
AT_ONCE_PER_HOST = 8
# Fewer than the limit of a host: several merchants may use one host, each on a path of its own.
AT_ONCE_PER_MERCHANT = 6

_Room = asyncio.Semaphore


class PrecheckConcurrency:
    def __init__(self) -> None:
        self._merchants: WeakValueDictionary[str, _Room] = WeakValueDictionary()
        self._hosts: WeakValueDictionary[str, _Room] = WeakValueDictionary()
        self._leads: set[UUID] = set()
        self._crowds: Counter[str] = Counter()

    def is_here(self, lead_id: UUID) -> bool:
        """Whether a check of this lead is running, or waiting for its turn."""
        return lead_id in self._leads

    def waiting(self, merchant_id: str) -> int:
        """How many leads of a merchant are running or waiting."""
        return self._crowds[merchant_id]

    @asynccontextmanager
    async def room(self, lead_id: UUID, merchant_id: str, hosts: Iterable[str]) -> AsyncIterator[None]:
        """Wait for a turn. Merchants first, then hosts by name: one order, so there is no deadlock."""
        self._leads.add(lead_id)
        self._crowds[merchant_id] += 1
        try:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(_of(self._merchants, merchant_id, AT_ONCE_PER_MERCHANT))
                for host in sorted(set(hosts)):
                    await stack.enter_async_context(_of(self._hosts, host, AT_ONCE_PER_HOST))
                yield
        finally:
            self._leads.discard(lead_id)
            self._crowds[merchant_id] -= 1
            if not self._crowds[merchant_id]:
                del self._crowds[merchant_id]


def _of(rooms: "WeakValueDictionary[str, _Room]", name: str, size: int) -> _Room:
    return rooms.setdefault(name, _Room(size))
