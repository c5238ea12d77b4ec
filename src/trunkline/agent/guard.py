"""Decides which streams a pod takes. The router's view may be stale or lost; what is decided here is what happens.

A stream is taken with a token for this pod and this allocation, while the pod is under its maximum. A turn of an
allocation is used once: after its stream has closed the router may have given the pod to somebody else. A later turn of
a call that is still here takes its place: the carrier has lost the earlier stream.
"""

import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trunkline.agent import token as tokens

# Close codes of RFC 6455 and its registry: policy violation, and try again later.
FORBIDDEN = 1008
BUSY = 1013

# Ten minutes, the life of a tombstone at the router, at more than one call per second.
USED_MAX = 1000
# As many as a heartbeat may name.
ENDED_MAX = 1000


@dataclass(frozen=True, slots=True)
class StreamAdmitted:
    allocation_id: str
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """The agent has said goodbye on this call already: only its release did not arrive. It is to be released again."""

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
        # Calls that are over and whose handler does not end: they take up the pod like live ones.
        self._hanging: set[str] = set()
        # Calls that are over, and when they were let go of.
        self._ended: OrderedDict[str, float] = OrderedDict()
        # By allocation, of all that were let in.
        self._used: OrderedDict[str, _Use] = OrderedDict()
        # While leaving, only these calls are let in: the router had given them this pod before it knew.
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
        """Whether handlers that do not end take up the whole pod."""
        return len(self._hanging) >= self._max_concurrent

    @property
    def is_letting_go(self) -> bool:
        """Whether a call is released whose stream is still being closed: the router may have given its place away."""
        return any(
            use.is_finished and self._live.get(use.call_sid) == use.turn for use in self._used.values()
        )

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

    def admit_stray(self, call_sid: str) -> StreamAdmitted | StreamRefused:
        """A call that came by the fallback URL: no allocation, the same maximum."""
        if call_sid in self._live:
            return StreamRefused("this call is here already", FORBIDDEN)
        if (refused := self._no_room(call_sid)) is not None:
            return refused
        self._live[call_sid] = 0
        return StreamAdmitted("")

    def is_current(self, call_sid: str, turn: int) -> bool:
        return self._live.get(call_sid) == turn

    def finish(self, allocation_id: str) -> None:
        """The agent says goodbye: no later turn of this allocation is taken."""
        if allocation_id in self._used:
            self._used[allocation_id].is_finished = True

    def let_go(self, call_sid: str, turn: int = 0) -> None:
        """An earlier turn lets go of nothing."""
        if self.is_current(call_sid, turn):
            del self._live[call_sid]
            self._ended[call_sid] = time.monotonic()
            self._ended.move_to_end(call_sid)
            if len(self._ended) > ENDED_MAX:
                self._ended.popitem(last=False)

    def ended(self, within_s: float) -> list[str]:
        """Calls that this pod had and that are over, of the last so many seconds."""
        since_s = time.monotonic() - within_s
        while self._ended and next(iter(self._ended.values())) < since_s:
            self._ended.popitem(last=False)
        return sorted(self._ended.keys() - self._live.keys())

    def hang(self, call_sid: str, turn: int = 0) -> None:
        """The call is over, its handler is not."""
        self.let_go(call_sid, turn)
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
