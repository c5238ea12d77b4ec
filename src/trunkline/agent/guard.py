"""Decides which streams a pod takes. The router's view may be stale or lost; what is decided here is what happens.

A stream is taken with a token for this pod and this allocation, while the pod is under its maximum. An allocation
is used once: after its stream has closed the router may have given the pod to somebody else.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trunkline.agent import token as tokens

# Close codes of RFC 6455 and its registry: policy violation, and try again later.
FORBIDDEN = 1008
BUSY = 1013

# Ten minutes, the life of a tombstone at the router, at more than one call per second.
USED_MAX = 1000


@dataclass(frozen=True, slots=True)
class Admitted:
    allocation_id: str


@dataclass(frozen=True, slots=True)
class Refused:
    reason: str
    close_code: int


class Guard:
    def __init__(self, max_concurrent: int):
        if max_concurrent < 1:
            raise ValueError("max_concurrent must be at least 1")
        self._max_concurrent = max_concurrent
        self._secrets: Sequence[bytes] = ()
        self._live: set[str] = set()
        # Allocation -> call, of all that were let in.
        self._used: OrderedDict[str, str] = OrderedDict()
        # While leaving, only these calls are let in: the router had given them this pod before it knew.
        self._expected: set[str] | None = None

    @property
    def max_concurrent(self) -> int:
        return self._max_concurrent

    @property
    def live(self) -> list[str]:
        return sorted(self._live)

    @property
    def leaving(self) -> bool:
        return self._expected is not None

    @property
    def expected(self) -> frozenset[str]:
        """Calls that may still come although the pod is leaving."""
        return frozenset(self._expected or ())

    def trust(self, secrets: Sequence[bytes]) -> None:
        """Tokens made with these are good. There are two while the platform's key is rotated."""
        self._secrets = secrets

    def limit(self, max_concurrent: int) -> None:
        """The most calls at once. Live ones above it go on."""
        self._max_concurrent = max(1, max_concurrent)

    def leave(self, given: Iterable[str] = ()) -> None:
        """Take nobody any more but the calls that were given this pod and have not come yet."""
        self._expected = set(given) - set(self._used.values())

    def admit(self, call_sid: str, token: str) -> Admitted | Refused:
        allocation_id = tokens.verify(self._secrets, call_sid, token)
        if allocation_id is None:
            return Refused("no valid token for this pod", FORBIDDEN)
        if allocation_id in self._used or call_sid in self._live:
            return Refused("this allocation has been used", FORBIDDEN)
        if self._expected is not None and call_sid not in self._expected:
            return Refused("the pod is leaving", BUSY)
        if len(self._live) >= self._max_concurrent:
            return Refused("the pod has its maximum of calls", BUSY)
        self._live.add(call_sid)
        self._used[allocation_id] = call_sid
        if len(self._used) > USED_MAX:
            self._used.popitem(last=False)
        if self._expected is not None:
            self._expected.discard(call_sid)
        return Admitted(allocation_id)

    def admit_stray(self, call_sid: str) -> Admitted | Refused:
        """A call that came by the fallback URL: no allocation, the same maximum."""
        if call_sid in self._live:
            return Refused("this call is here already", FORBIDDEN)
        if self._expected is not None:
            return Refused("the pod is leaving", BUSY)
        if len(self._live) >= self._max_concurrent:
            return Refused("the pod has its maximum of calls", BUSY)
        self._live.add(call_sid)
        return Admitted("")

    def let_go(self, call_sid: str) -> None:
        self._live.remove(call_sid)
