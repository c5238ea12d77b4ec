"""Records what was really dialled, and which inbound calls were answered. Tests check guarantees by it, never by the
platform's tables."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trunkline.clock import Clock, SystemClock
from trunkline.telephony.carrier import Direction
from trunkline.telephony.simulator.answered_calls import AnsweredCall

if TYPE_CHECKING:
    from trunkline.telephony.simulator.calls import SimulatedCall


@dataclass(slots=True)
class Dial:
    """One call that was dialled into the network, or came in and got an agent. Its instants are seconds since 1970."""

    no: int
    call_id: str
    account: str
    attempt: str | None
    to: str
    from_: str
    requested_at: float
    started_at: float
    answered_at: float | None = None
    ended_at: float | None = None
    status: str = "initiated"
    stream_url: str | None = None
    direction: Direction = "outbound"

    @property
    def own_number(self) -> str:
        """The platform's number of the call."""
        return self.from_ if self.direction == "outbound" else self.to


@dataclass(frozen=True, slots=True)
class DoubleDial:
    """`attempt`: one attempt was dialled twice. `pair`: one number rang one person twice at the same time."""

    rule: Literal["attempt", "pair"]
    key: str
    call_ids: tuple[str, str]


@dataclass(frozen=True, slots=True)
class OverCapacity:
    number: str
    limit: int
    peak: int
    at: float


class Ledger:
    def __init__(self, clock: Clock | None = None) -> None:
        clock = clock or SystemClock()
        # Instants must never step back, so the wall clock is read once and the monotonic one from then on.
        self._zero = clock.now().timestamp() - clock.monotonic_s()
        self._clock = clock
        self.dials: list[Dial] = []
        self.answered: list[AnsweredCall] = []

    def now(self) -> float:
        return self._zero + self._clock.monotonic_s()

    def open(self, call: "SimulatedCall") -> Dial:
        order = call.order
        dial = Dial(
            no=len(self.dials),
            call_id=call.sid,
            account=call.account.sid,
            attempt=order.attempt,
            to=order.to,
            from_=order.from_,
            requested_at=call.created_at,
            started_at=self.now(),
            direction=order.direction,
        )
        self.dials.append(dial)
        return dial

    def answer(self, call: "SimulatedCall") -> AnsweredCall:
        """A person answered, or calls in: from now on they wait for an agent."""
        order = call.order
        answered = AnsweredCall(
            no=len(self.answered),
            call_id=call.sid,
            carrier=call.account.carrier,
            account=call.account.sid,
            attempt=order.attempt,
            to=order.to,
            from_=order.from_,
            direction=order.direction,
            answered_at=self.now(),
            machine=call.fate.machine,
        )
        self.answered.append(answered)
        return answered

    def double_dials(self) -> list[DoubleDial]:
        return double_dials(self.dials)

    def over_capacity(self, limits: Mapping[str, int]) -> list[OverCapacity]:
        return over_capacity(self.dials, limits)

    def live(self) -> int:
        return sum(dial.ended_at is None for dial in self.dials)


def double_dials(dials: Iterable[Dial]) -> list[DoubleDial]:
    attempts: dict[str, Dial] = {}
    pairs: dict[tuple[str, str], Dial] = {}
    found: list[DoubleDial] = []
    dialled = (dial for dial in dials if dial.direction == "outbound")
    for dial in sorted(dialled, key=lambda dial: dial.started_at):
        if dial.attempt:
            earlier = attempts.setdefault(dial.attempt, dial)
            if earlier is not dial:
                found.append(DoubleDial("attempt", dial.attempt, (earlier.call_id, dial.call_id)))
        pair = (dial.to, dial.from_)
        before = pairs.get(pair)
        if before and _end(before) > dial.started_at:
            found.append(DoubleDial("pair", f"{dial.to} from {dial.from_}", (before.call_id, dial.call_id)))
        if not before or _end(dial) > _end(before):
            pairs[pair] = dial
    return found


def over_capacity(dials: Iterable[Dial], limits: Mapping[str, int]) -> list[OverCapacity]:
    """Numbers that at some instant had more calls than their limit. Numbers without a limit are not checked."""
    return [
        OverCapacity(number, limits[number], peak, at)
        for number, (peak, at) in peaks(dials).items()
        if number in limits and peak > limits[number]
    ]


def peaks(dials: Iterable[Dial]) -> dict[str, tuple[int, float]]:
    """The most calls each number had at one instant, and when first. An end frees its channel at once."""
    changes: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for dial in dials:
        changes[dial.own_number] += [(dial.started_at, 1), (_end(dial), -1)]
    return {number: _peak(sorted(ordered)) for number, ordered in changes.items()}


def _peak(changes: list[tuple[float, int]]) -> tuple[int, float]:
    live, peak, at = 0, 0, 0.0
    for instant, change in changes:  # at one instant -1 sorts before +1
        live += change
        if live > peak:
            peak, at = live, instant
    return peak, at


def _end(dial: Dial) -> float:
    if dial.ended_at is None:
        return math.inf
    return max(dial.ended_at, math.nextafter(dial.started_at, math.inf))  # no dial is shorter than an instant
