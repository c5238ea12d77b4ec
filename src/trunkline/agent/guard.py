"""Decides which streams a pod admits. The router's view may be stale or lost; the pod itself has the last word.

A stream is admitted with a token for this pod and this allocation, while the pod is under its maximum. A turn of an
allocation is used once: after its stream has closed the router may have given the pod to another call. A later turn of
a call that is still live here replaces the earlier one: the carrier has lost that stream.
"""

import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trunkline.agent import token as tokens

# Close codes of RFC 6455 and its registry: policy violation, and try again later.
FORBIDDEN = 1008
BUSY = 1013

# More than one call per second for ten minutes, which is how long the router keeps a tombstone.
USED_MAX = 1000
# The maximum that a heartbeat may name.
ENDED_MAX = 1000


@dataclass(frozen=True, slots=True)
class StreamAdmitted:
    allocation_id: str
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """The agent has finished this call already, and its release was lost: release it again."""

    turn: int


@dataclass(frozen=True, slots=True)
class StreamRefused:
    reason: str
    close_code: int


@dataclass(slots=True)
class _Use:
    call_sid: str
    turn: int
    is_finished: bool = False


class Guard:
    def __init__(self, max_concurrent: int):
        if max_concurrent < 1:
            raise ValueError("max_concurrent must be at least 1")
        self._max_concurrent = max_concurrent
        self._secrets: Sequence[bytes] = ()
        # Call -> the turn of its stream.
        self._live: dict[str, int] = {}
        # Ended calls whose handlers still run: they occupy slots of the pod like live ones.
        self._hanging: set[str] = set()
        # Ended calls, and when their slots were freed.
        self._ended: OrderedDict[str, float] = OrderedDict()
        # The admitted streams, by allocation.
        self._used: OrderedDict[str, _Use] = OrderedDict()
        # While leaving, only these calls are admitted: they got this pod before the router knew that it is leaving.
        self._expected: set[str] | None = None

    @property
    def max_concurrent(self) -> int:
        return self._max_concurrent

    @property
    def live(self) -> list[str]:
        return sorted(self._live)

    @property
    def hanging(self) -> list[str]:
        return sorted(self._hanging)

    @property
    def is_stuck(self) -> bool:
        """Whether handlers that do not end occupy the whole pod."""
        return len(self._hanging) >= self._max_concurrent

    @property
    def is_closing_stream(self) -> bool:
        """Whether a released call's stream is still closing: the router may have given its slot to another call."""
        return any(
            use.is_finished and self._live.get(use.call_sid) == use.turn for use in self._used.values()
        )

    @property
    def expected(self) -> frozenset[str]:
        """Calls that may still connect although the pod is leaving."""
        return frozenset(self._expected or ())

    def trust(self, secrets: Sequence[bytes]) -> None:
        """Accept tokens signed with these. There are two during a rotation of the platform's key."""
        self._secrets = secrets

    def limit(self, max_concurrent: int) -> None:
        """The maximum of concurrent calls. Live ones above it go on."""
        self._max_concurrent = max(1, max_concurrent)

    def leave(self, given: Iterable[str] = ()) -> None:
        """Admit only the calls that got this pod and have not connected yet."""
        self._expected = set(given) - {use.call_sid for use in self._used.values()}

    def admit(self, call_sid: str, token: str) -> StreamAdmitted | Finished | StreamRefused:
        proven = tokens.verify(self._secrets, call_sid, token)
        if proven is None:
            return StreamRefused("no valid token for this pod", FORBIDDEN)
        before = self._used.get(proven.allocation_id)
        if (before and before.turn >= proven.turn) or self._live.get(call_sid, -1) >= proven.turn:
            return StreamRefused("this allocation has been used", FORBIDDEN)
        if before and before.is_finished:
            return Finished(proven.turn)
        if (refused := self._no_room(call_sid)) is not None:
            return refused
        self._live[call_sid] = proven.turn
        self._used[proven.allocation_id] = _Use(call_sid, proven.turn)
        if len(self._used) > USED_MAX:
            self._used.popitem(last=False)
        if self._expected is not None:
            self._expected.discard(call_sid)
        return StreamAdmitted(proven.allocation_id, proven.turn)

    def admit_fallback(self, call_sid: str) -> StreamAdmitted | StreamRefused:
        """A call by the fallback URL: no allocation, the same maximum."""
        if call_sid in self._live:
            return StreamRefused("this call is here already", FORBIDDEN)
        if (refused := self._no_room(call_sid)) is not None:
            return refused
        self._live[call_sid] = 0
        return StreamAdmitted("")

    def is_current(self, call_sid: str, turn: int) -> bool:
        return self._live.get(call_sid) == turn

    def finish(self, allocation_id: str) -> None:
        """The agent has finished the call: no later turn of this allocation is admitted."""
        if allocation_id in self._used:
            self._used[allocation_id].is_finished = True

    def release(self, call_sid: str, turn: int = 0) -> None:
        """Free the call's slot. An earlier turn frees nothing."""
        if self.is_current(call_sid, turn):
            del self._live[call_sid]
            self._ended[call_sid] = time.monotonic()
            self._ended.move_to_end(call_sid)
            if len(self._ended) > ENDED_MAX:
                self._ended.popitem(last=False)

    def ended(self, within_s: float) -> list[str]:
        """Calls of this pod that ended within the last `within_s`."""
        since_s = time.monotonic() - within_s
        while self._ended and next(iter(self._ended.values())) < since_s:
            self._ended.popitem(last=False)
        return sorted(self._ended.keys() - self._live.keys())

    def hang(self, call_sid: str, turn: int = 0) -> None:
        """The call has ended, its handler runs on."""
        self.release(call_sid, turn)
        self._hanging.add(call_sid)

    def unhang(self, call_sid: str) -> None:
        self._hanging.discard(call_sid)

    def _no_room(self, call_sid: str) -> StreamRefused | None:
        is_here = call_sid in self._live
        if self._expected is not None and not is_here and call_sid not in self._expected:
            return StreamRefused("the pod is leaving", BUSY)
        if not is_here and len(self._live) + len(self._hanging) >= self._max_concurrent:
            return StreamRefused("the pod has its maximum of calls", BUSY)
        return None
