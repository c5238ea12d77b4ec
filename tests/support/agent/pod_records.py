"""What pods wrote down of themselves: when they lived, and which calls they had. Moments are seconds since 1970."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec


class PodEvent(msgspec.Struct, frozen=True, array_like=True):
    """One line of a pod's log: it registered, fell ill, got well, began to leave; a call began or ended at it."""

    pod: str
    what: str
    at_s: float
    call: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    began_s: float
    ended_s: float = math.inf

    def has(self, moment_s: float) -> bool:
        return self.began_s <= moment_s < self.ended_s


@dataclass(frozen=True, slots=True)
class Served:
    """A call at a pod. One whose pod was killed ends with it."""

    pod: str
    call: str
    span: Span
    was_killed: bool = False


@dataclass(slots=True)
class PodRecord:
    """One process' life of one pod."""

    name: str
    tier: str
    alive: Span
    calls: list[Served] = field(default_factory=list)
    # Times in which it takes no stream although it lives: leaving, or ill.
    away: list[Span] = field(default_factory=list)

    def is_free(self, moment_s: float) -> bool:
        return (
            self.alive.has(moment_s)
            and not any(span.has(moment_s) for span in self.away)
            and not any(call.span.has(moment_s) for call in self.calls)
        )


@dataclass(frozen=True, slots=True)
class PodLife:
    """A process of pods: its log, and when it was killed, if it was."""

    log: Path
    killed_s: float | None = None


def read_pods(lives: Iterable[PodLife], tiers: Mapping[str, str]) -> list[PodRecord]:
    return [record for life in lives for record in _of_process(life, tiers)]


def _of_process(life: PodLife, tiers: Mapping[str, str]) -> Iterator[PodRecord]:
    by_pod: dict[str, list[PodEvent]] = {}
    lines = life.log.read_bytes().splitlines() if life.log.exists() else []
    for line in lines:
        event = msgspec.json.decode(line, type=PodEvent)
        by_pod.setdefault(event.pod, []).append(event)
    end_s = life.killed_s if life.killed_s is not None else math.inf
    for pod, events in by_pod.items():
        yield _of_pod(pod, events, end_s, tiers.get(pod, "standard"))


def _of_pod(pod: str, events: list[PodEvent], end_s: float, tier: str) -> PodRecord:
    # It takes streams from its first event on, whatever it says of itself.
    record = PodRecord(pod, tier, Span(min(event.at_s for event in events), end_s))
    live: dict[str, float] = {}
    ill_s: float | None = None
    for event in events:
        match event.what:
            case "began":
                live[event.call] = event.at_s
            case "ended":
                record.calls.append(Served(pod, event.call, Span(live.pop(event.call), event.at_s)))
            case "ill":
                ill_s = event.at_s
            case "well" if ill_s is not None:
                record.away.append(Span(ill_s, event.at_s))
                ill_s = None
            case "leaving":
                record.away.append(Span(event.at_s))
    if ill_s is not None:
        record.away.append(Span(ill_s))
    record.calls += [Served(pod, call, Span(at_s, end_s), end_s < math.inf) for call, at_s in live.items()]
    return record
