"""The faults, by name. Each strikes once and is taken back by itself; it says what it took away, and until when."""

import asyncio
import itertools
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from bench.agents.fleet import PodGroup
from bench.agents.installation import Installation
from bench.agents.scenario import LONG_RING_S, RING_S
from tests.support.agent.pod_records import Span
from tests.support.waiting import eventually
from trunkline.telephony.simulator.ledger import Dial

AWAY_S = 8.0
STOPPED_S = 10.0
LACKING_S = 2.0
# Longer than it takes to replace all pods.
LEADERLESS_MAX_S = 300.0
ILL_S = 30.0
# A rollout waits for nobody longer than this between two groups.
ROLL_PAUSE_S = 0.5
# Postgres is killed when so many phones ring: nobody is dialled while it is away, so only these people answer then.
RINGING_MIN, RINGING_LIMIT_S, RINGING_POLL_S = 6, 30.0, 0.1
# Pods are killed when most of them are in calls.
BUSY_SHARE, BUSY_LIMIT_S = 0.7, 30.0
_turns = itertools.count()


@dataclass(frozen=True, slots=True)
class Strike:
    """From the blow to the moment in which the engine, or the process, answers again."""

    span: Span
    # Engines that were away in this time: none, "valkey", "postgres" or both.
    engines: frozenset[str] = frozenset()


Fault = Callable[[Installation], Awaitable[Strike]]


@dataclass(frozen=True, slots=True)
class Case:
    inflict: Fault
    # Whether answers while an engine is away are counted and asked for.
    takes_engine_away: bool = False
    # Longer than it takes until everybody has noticed.
    recovery_s: float = 12.0
    # Where few people answer while the engine is away, more strikes are needed.
    patience: float = 1.0
    ring_s: tuple[float, float] = RING_S


async def valkey_killed(place: Installation) -> Strike:
    began_s = time.time()
    await place.engines.kill_valkey()
    await asyncio.sleep(AWAY_S)
    await place.engines.start_valkey()
    return Strike(Span(began_s, time.time()), frozenset({"valkey"}))


async def valkey_flushed(place: Installation) -> Strike:
    began_s = time.time()
    await place.engines.flush_valkey()
    return Strike(Span(began_s, time.time()))


async def valkey_emptied(place: Installation) -> Strike:
    began_s = time.time()
    await place.engines.kill_valkey()
    await place.engines.start_valkey(is_empty=True)
    return Strike(Span(began_s, time.time()))


async def valkey_failed_over(place: Installation) -> Strike:
    await place.engines.fail_over(LACKING_S)
    now_s = time.time()
    return Strike(Span(now_s, now_s))


async def postgres_killed(place: Installation) -> Strike:
    await _phones_ring(place)
    began_s = time.time()
    await place.engines.kill_postgres()
    await asyncio.sleep(AWAY_S)
    await place.engines.start_postgres()
    return Strike(Span(began_s, time.time()), frozenset({"postgres"}))


async def both_killed(place: Installation) -> Strike:
    await _phones_ring(place)
    began_s = time.time()
    await asyncio.gather(place.engines.kill_postgres(), place.engines.kill_valkey())
    await asyncio.sleep(AWAY_S)
    await asyncio.gather(place.engines.start_postgres(), place.engines.start_valkey())
    return Strike(Span(began_s, time.time()), frozenset({"postgres", "valkey"}))


async def router_leader_killed(place: Installation) -> Strike:
    return await _kill(place, await place.leader())


async def api_killed(place: Installation) -> Strike:
    return await _kill(place, f"api-{1 + next(_turns) % 2}")


async def api_stopped(place: Installation) -> Strike:
    process = place.roles[f"api-{1 + next(_turns) % 2}"]
    began_s = time.time()
    process.signal(signal.SIGSTOP)
    await asyncio.sleep(STOPPED_S)
    process.signal(signal.SIGCONT)
    return Strike(Span(began_s, time.time()))


async def agents_rolled(place: Installation) -> Strike:
    """The leader is killed, and its lease lasts until all pods have been replaced."""
    began_s = time.time()
    leader = place.roles[await place.leader()]
    leader.is_kept_down = True
    leader.kill()
    await _end_lease_in(place, LEADERLESS_MAX_S)
    version = str(int(max(group.version for group in place.fleet.live)) + 1)
    for group in place.fleet.live:
        await place.fleet.replace(group, version)
        await asyncio.sleep(ROLL_PAUSE_S)
    await _end_lease_in(place, 0.0)
    leader.is_kept_down = False
    return Strike(Span(began_s, time.time()))


async def _end_lease_in(place: Installation, seconds: float) -> None:
    """Nobody else leads before."""
    async with place.database() as conn:
        await conn.execute(
            "UPDATE leaders SET expires_at = clock_timestamp() + make_interval(secs => $1)"
            " WHERE name = 'router'",
            seconds,
        )


async def pods_killed(place: Installation) -> Strike:
    """A quarter of all, in their calls: ten in one process, or the ones that are alone, in turn."""
    live = place.fleet.live
    wanted = sum(len(group.names) for group in live) // 4
    alone = [group for group in live if len(group.names) == 1]
    together = [group for group in live if len(group.names) == wanted]
    chosen: list[PodGroup] = together[:1] if next(_turns) % 2 and together else alone[:wanted]
    with suppress(AssertionError):  # after a while any of them will do
        await eventually(
            lambda: sum(group.live_calls for group in chosen) >= BUSY_SHARE * wanted, timeout_s=BUSY_LIMIT_S
        )
    began_s = time.time()
    for group in chosen:
        group.process.kill()
    await place.fleet.bring_back(chosen)
    return Strike(Span(began_s, time.time()))


async def pod_takes_no_stream(place: Installation) -> Strike:
    """Its heartbeats go on. It refuses streams, or leaves their handshakes unanswered, in turn."""
    alone = next(group for group in place.fleet.live if len(group.names) == 1)
    began_s = time.time()
    alone.process.signal(signal.SIGUSR1 if next(_turns) % 2 else signal.SIGUSR2)
    await asyncio.sleep(ILL_S)
    alone.process.signal(signal.SIGHUP)
    return Strike(Span(began_s, time.time()))


FAULTS: Mapping[str, Case] = {
    "valkey_killed": Case(valkey_killed, takes_engine_away=True),
    "valkey_flushed": Case(valkey_flushed),
    "valkey_emptied": Case(valkey_emptied),
    "valkey_failed_over": Case(valkey_failed_over),
    "postgres_killed": Case(postgres_killed, takes_engine_away=True, patience=2.0, ring_s=LONG_RING_S),
    "both_killed": Case(both_killed, takes_engine_away=True, patience=2.0, ring_s=LONG_RING_S),
    "router_leader_killed": Case(router_leader_killed, recovery_s=25.0),
    "api_killed": Case(api_killed),
    "api_stopped": Case(api_stopped),
    "agents_rolled": Case(agents_rolled, recovery_s=25.0),
    "pods_killed": Case(pods_killed, recovery_s=20.0),
    "pod_takes_no_stream": Case(pod_takes_no_stream),
}


def rings(dial: Dial) -> bool:
    return dial.direction == "outbound" and dial.answered_at is None and dial.ended_at is None


async def _phones_ring(place: Installation) -> None:
    """Until enough of them do; after a while fewer will do."""
    seen, deadline_s = 0, time.time() + RINGING_LIMIT_S
    while time.time() < deadline_s:
        dials = await place.dials(seen)
        if sum(map(rings, dials)) >= RINGING_MIN:
            return
        # What does not ring any more is not read again.
        seen += next((no for no, dial in enumerate(dials) if rings(dial)), len(dials))
        await asyncio.sleep(RINGING_POLL_S)


async def _kill(place: Installation, name: str) -> Strike:
    """The supervisor starts it again."""
    began_s = time.time()
    process = place.roles[name]
    process.kill()
    await eventually(lambda: process.killed_s is None, timeout_s=30, what=f"{name} is started again")
    await process.ready()
    return Strike(Span(began_s, time.time()))
