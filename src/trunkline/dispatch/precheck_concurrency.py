"""Room for questions to tenants' own systems: a slow one is waited for only by the leads of its own merchant.

Whoever waits for room has claimed nothing, so no lease runs out in a queue.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import UUID
from weakref import WeakValueDictionary

# Fewer than a process may have connections to one host: a question that waited for a connection would wait in its own
# time-out, and a slow host would seem to be silent.
AT_ONCE_PER_HOST = 8
# Fewer than a host has room for: several merchants may ask one host, each on a path of its own.
AT_ONCE_PER_MERCHANT = 6

_Room = asyncio.Semaphore


class PrecheckConcurrency:
    def __init__(self) -> None:
        self._merchants: WeakValueDictionary[str, _Room] = WeakValueDictionary()
        self._hosts: WeakValueDictionary[str, _Room] = WeakValueDictionary()
        self._leads: set[UUID] = set()
        self._crowds: Counter[str] = Counter()

    def is_here(self, lead_id: UUID) -> bool:
        """Whether it is being asked about, or waits for that."""
        return lead_id in self._leads

    def waiting(self, merchant_id: str) -> int:
        """How many leads of a merchant are."""
        return self._crowds[merchant_id]

    @asynccontextmanager
    async def room(self, lead_id: UUID, merchant_id: str, hosts: Iterable[str]) -> AsyncIterator[None]:
        """Wait for room. Merchants first, then hosts by name: nobody waits for somebody who waits for him."""
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
