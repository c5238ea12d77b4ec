"""Whatever can happen to an installation, by name and by seed.

A fault is inflicted and taken back by itself: what was killed is started again, what was stopped goes on, what was cut
is joined. The same seed inflicts the same faults in the same order; when exactly they strike is up to the machine.
"""

import asyncio
import os
import random
import shutil
import signal
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from tests.support.installation import Installation
from trunkline.embedded import Engines
from trunkline.embedded.server import Server
from trunkline.telephony.simulator.faults import Faults

# Longer than a dialer's deadline and a request's time-out together: whoever slept over it must not dial any more.
STOPPED_S = (0.5, 7.0)
OUTAGE_S = (0.3, 2.0)


@dataclass(frozen=True, slots=True)
class Scene:
    """What a fault may lay hands on."""

    place: Installation
    engines: Engines
    chance: random.Random
    # A server that is being started cannot be killed as well: its starter would take it for a failure.
    valkey_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    postgres_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def some_s(self, bounds: tuple[float, float]) -> float:
        return self.chance.uniform(*bounds)


Fault = Callable[[Scene], Coroutine[object, object, None]]


def killed(name: str) -> Fault:
    async def inflict(scene: Scene) -> None:
        scene.place.kill(name)

    return inflict


def frozen(name: str) -> Fault:
    """Stopped wherever it is, and continued."""

    async def inflict(scene: Scene) -> None:
        process = scene.place.processes[name]
        process.freeze()
        await asyncio.sleep(scene.some_s(STOPPED_S))
        process.thaw()

    return inflict


async def redeployed(scene: Scene) -> None:
    """Every process is asked to stop, one after the other, and its successor starts at once."""
    for name in scene.place.processes:
        old = scene.place.processes[name]
        old.signal(signal.SIGTERM)
        if name != "face":  # the port must be free first
            scene.place.start(name)
        await asyncio.sleep(0.1)


async def flushed(scene: Scene) -> None:
    await _command(scene, "FLUSHALL")


async def scripts_forgotten(scene: Scene) -> None:
    await _command(scene, "SCRIPT", "FLUSH")


async def valkey_lost(scene: Scene) -> None:
    """Killed, and started again without the file it kept its memory in."""
    valkey = scene.engines.valkey
    assert valkey is not None
    async with scene.valkey_lock:
        await _end(valkey, signal.SIGKILL)
        for file in valkey.folder.iterdir():
            shutil.rmtree(file) if file.is_dir() else file.unlink()
        await valkey.start()


async def valkey_restarted(scene: Scene) -> None:
    """Killed, and started again with what it had: an intact memory of another life."""
    valkey = scene.engines.valkey
    assert valkey is not None
    async with scene.valkey_lock:
        await _end(valkey, signal.SIGKILL)
        await valkey.start()


async def valkey_silent(scene: Scene) -> None:
    """It answers nobody for a while."""
    assert scene.engines.valkey is not None
    async with scene.valkey_lock:
        os.kill(scene.engines.valkey.pid, signal.SIGSTOP)
        await asyncio.sleep(scene.some_s((2.0, 4.0)))
        os.kill(scene.engines.valkey.pid, signal.SIGCONT)


def postgres_restarted(how: signal.Signals) -> Fault:
    async def inflict(scene: Scene) -> None:
        postgres = scene.engines.postgres
        assert postgres is not None
        async with scene.postgres_lock:
            await _end(postgres, how)
            await postgres.start()

    return inflict


async def valkey_cut_off(scene: Scene) -> None:
    """One dialer's connections are reset and refused; everybody else's go on."""
    scene.place.to_valkey.refuse()
    scene.place.to_valkey.cut()
    await asyncio.sleep(scene.some_s(OUTAGE_S))
    await scene.place.to_valkey.heal()


async def valkey_swallowed(scene: Scene) -> None:
    """One dialer's words vanish; they arrive late once the way is open again."""
    scene.place.to_valkey.black_hole()
    await asyncio.sleep(scene.some_s((1.0, 3.0)))
    await scene.place.to_valkey.heal()


async def postgres_cut_off(scene: Scene) -> None:
    scene.place.to_postgres.refuse()
    scene.place.to_postgres.cut()
    await asyncio.sleep(scene.some_s(OUTAGE_S))
    await scene.place.to_postgres.heal()


async def postgres_swallowed(scene: Scene) -> None:
    scene.place.to_postgres.black_hole()
    await asyncio.sleep(scene.some_s(OUTAGE_S))
    await scene.place.to_postgres.heal()


async def commits_unanswered(scene: Scene) -> None:
    """Commits take effect and one dialer never learns of it."""
    for _ in range(4):
        scene.place.to_postgres.swallow_reply(after=b"COMMIT;")
        await asyncio.sleep(scene.some_s((0.1, 0.3)))
    await scene.place.to_postgres.heal()


async def scripts_unanswered(scene: Scene) -> None:
    """Scripts run and one dialer never learns of it: grants that nobody has."""
    for _ in range(4):
        scene.place.to_valkey.swallow_reply(after=b"EVALSHA")
        await asyncio.sleep(scene.some_s((0.1, 0.3)))
    await scene.place.to_valkey.heal()


FAULTS: Mapping[str, Fault] = {
    **{f"{name} killed": killed(name) for name in ("face", "dialer-1", "dialer-2", "folder", "control")},
    **{f"{name} frozen": frozen(name) for name in ("dialer-1", "dialer-2", "folder", "control")},
    "redeployed": redeployed,
    "flushed": flushed,
    "scripts forgotten": scripts_forgotten,
    "valkey lost": valkey_lost,
    "valkey restarted": valkey_restarted,
    "valkey silent": valkey_silent,
    "postgres restarted": postgres_restarted(signal.SIGINT),
    "postgres restarted at once": postgres_restarted(signal.SIGQUIT),
    "postgres killed": postgres_restarted(signal.SIGKILL),
    "valkey cut off": valkey_cut_off,
    "valkey swallowed": valkey_swallowed,
    "postgres cut off": postgres_cut_off,
    "postgres swallowed": postgres_swallowed,
    "commits unanswered": commits_unanswered,
    "scripts unanswered": scripts_unanswered,
}

# Every way in which a carrier misbehaves, each in a share of calls or webhooks.
MISBEHAVING = Faults(
    slow_reply=0.04,
    error_after_dial=0.04,
    reply_lost=0.02,
    reset_after_dial=0.03,
    garbage_after_dial=0.02,
    webhook_first=0.04,
    throttled=0.02,
    error_undialled=0.01,
    reset_undialled=0.01,
    redirect_undialled=0.01,
    webhook_lost=0.05,
    webhook_doubled=0.08,
    webhook_reordered=0.08,
    webhook_late=0.08,
    slow_reply_s=(0.1, 1.0),
    reply_lost_s=3.0,
    webhook_late_s=(0.2, 2.0),
    list_lag_s=0.5,
)


async def torment(scene: Scene, seconds: float, log: list[str]) -> None:
    """One fault after the other, now and then two at a time, until the time is up and all are taken back."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    running: set[asyncio.Task[None]] = set()
    while loop.time() < end:
        name = scene.chance.choice(sorted(FAULTS))
        log.append(name)
        running.add(asyncio.create_task(FAULTS[name](scene), name=name))
        if len(running) >= 2 or scene.chance.random() < 0.6:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        await some_calls(scene.place)
    for task in running:
        await task
    await heal(scene)


async def some_calls(place: Installation, many: int = 8, at_most_s: float = 3.0) -> None:
    """Faults strike while calls are made: let some be made, unless the last fault keeps everybody from it."""
    with suppress(AssertionError):
        await place.dialled(many, timeout_s=at_most_s)


async def heal(scene: Scene) -> None:
    await scene.place.to_postgres.heal()
    await scene.place.to_valkey.heal()
    for process in scene.place.processes.values():
        process.thaw()


async def _end(server: Server, how: signal.Signals) -> None:
    os.kill(server.pid, how)
    await server.exited()


async def _command(scene: Scene, *words: str) -> None:
    client: Any
    async with Redis.from_url(scene.engines.redis_url) as client:
        try:
            await client.execute_command(*words)
        except (RedisError, OSError):
            return  # it is away, which is worse
