"""Verifies API keys from a cache, so that a request costs no query for its key.

An entry is fresh for `fresh_s`: within that time a revocation takes effect everywhere (in the process that revoked it,
at once). While Postgres is away, a key that was valid before stays valid for `stale_s`: a revocation could not have
been written meanwhile, and calls must still be routed. Expiry is checked at every use.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from trunkline.api import key_format
from trunkline.api.principal import Principal
from trunkline.clock import Clock
from trunkline.errors import StoreUnavailable
from trunkline.schema.keys import ApiKey

KNOWN_MAX = 10_000
# In a cache of their own: invented keys evict only other invented keys.
UNKNOWN_MAX = 1_000
# How long a request with a key that was valid before waits for a slow database.
REFRESH_WAIT_S = 0.5
# How long a request with a new key waits for the query. Then the response says that the database is away.
ASK_WAIT_S = 1.5
RETRY_S = 1.0

V = TypeVar("V")
Lookup = Callable[[bytes], Awaitable[ApiKey | None]]


@dataclass(slots=True)
class _KnownKey:
    key: ApiKey
    principal: Principal
    checked_at_s: float
    retry_at_s: float = 0.0


class KeyVerifier:
    def __init__(self, lookup: Lookup, clock: Clock, *, fresh_s: float, stale_s: float):
        self._lookup = lookup
        self._clock = clock
        self._fresh_s = fresh_s
        self._stale_s = stale_s
        self._known: OrderedDict[bytes, _KnownKey] = OrderedDict()
        self._unknown: OrderedDict[bytes, float] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[ApiKey | None]] = {}

    def at_hand(self, token: bytes) -> Principal | None:
        """The principal of a key in the cache, without waiting. None: not cached, use `verify`."""
        answer = self._known.get(key_format.digest_of(token))
        if answer is None or self._clock.monotonic_s() - answer.checked_at_s >= self._fresh_s:
            return None
        return answer.principal if self._is_usable(answer.key) else None

    async def verify(self, token: str) -> Principal | None:
        """None for a key that is unknown, revoked or expired."""
        if not key_format.is_well_formed(token):
            return None
        return await self.verify_hash(key_format.digest(token))

    async def verify_hash(self, key_hash: bytes) -> Principal | None:
        """The same for a session of the console, which stores only the hash."""
        key = await self._find(key_hash)
        return Principal.of(key) if key is not None and self._is_usable(key) else None

    def forget(self, key_id: UUID) -> None:
        """After a revocation: query again at the next use."""
        self._known = OrderedDict((d, a) for d, a in self._known.items() if a.key.id != key_id)

    def _is_usable(self, key: ApiKey) -> bool:
        expired = key.expires_at is not None and key.expires_at <= self._clock.now()
        return key.revoked_at is None and not expired

    async def _find(self, digest: bytes) -> ApiKey | None:
        now_s = self._clock.monotonic_s()
        answer = self._known.get(digest)
        if answer is None:
            return None if self._is_known_bad(digest, now_s) else await self._ask(digest)
        self._known.move_to_end(digest)
        age_s = now_s - answer.checked_at_s
        if age_s < self._fresh_s or (age_s < self._stale_s and now_s < answer.retry_at_s):
            return answer.key
        if age_s >= self._stale_s:
            return await self._ask(digest)
        return await self._refresh(digest, answer)

    def _is_known_bad(self, digest: bytes, now_s: float) -> bool:
        checked_at_s = self._unknown.get(digest)
        return checked_at_s is not None and now_s - checked_at_s < self._fresh_s

    async def _refresh(self, digest: bytes, answer: _KnownKey) -> ApiKey | None:
        """Query, but use the cached entry if the database does not answer."""
        task = self._query(digest)
        await asyncio.wait({task}, timeout=REFRESH_WAIT_S)
        if task.done() and not task.cancelled() and not isinstance(task.exception(), StoreUnavailable):
            return task.result()
        answer.retry_at_s = self._clock.monotonic_s() + RETRY_S
        return answer.key

    async def _ask(self, digest: bytes) -> ApiKey | None:
        task = self._query(digest)
        # `wait`, not `await`: a client that disconnects must not cancel the query for the others that wait for it.
        await asyncio.wait({task}, timeout=ASK_WAIT_S)
        if not task.done():
            raise StoreUnavailable("The database did not answer in time, so the key could not be checked.")
        return task.result()

    def _query(self, digest: bytes) -> "asyncio.Task[ApiKey | None]":
        """The one running query for this key."""
        task = self._asking.get(digest)
        if task is None:
            task = asyncio.create_task(self._question(digest))
            self._asking[digest] = task
            task.add_done_callback(lambda done: self._answered(digest, done))
        return task

    async def _question(self, digest: bytes) -> ApiKey | None:
        key = await self._lookup(digest)
        now_s = self._clock.monotonic_s()
        if key is None:
            self._known.pop(digest, None)
            _remember(self._unknown, digest, now_s, UNKNOWN_MAX)
        else:
            self._unknown.pop(digest, None)
            _remember(self._known, digest, _KnownKey(key, Principal.of(key), now_s), KNOWN_MAX)
        return key

    def _answered(self, digest: bytes, task: "asyncio.Task[ApiKey | None]") -> None:
        self._asking.pop(digest, None)
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log a query whose clients are gone


def _remember(cache: OrderedDict[bytes, V], digest: bytes, value: V, size_max: int) -> None:
    cache[digest] = value
    cache.move_to_end(digest)
    while len(cache) > size_max:
        cache.popitem(last=False)
