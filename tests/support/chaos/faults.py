"""Whatever can happen to an installation, by name. Each fault strikes, lasts, and is taken back by itself.

`KINDS` says what a plan may draw of each, `inflict` does it. The supervisor starts again what was killed; what was
stopped goes on, what was cut is joined. `heal` ends whatever a plan left behind.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import aiohttp
import asyncpg
import msgspec

from tests.support.chaos.machine import APPLICATIONS, PROCESSES, World, listening
from tests.support.chaos.plan import Kind, Strike
from tests.support.faults import surroundings
from tests.support.hurry import AWAY
from tests.support.store import server_clock
from tests.support.waiting import eventually
from trunkline.telephony.simulator.faults import Faults, ReplyFault, WebhookFault

Inflict = Callable[[World, Strike], Awaitable[None]]

# Points at which a process ends or stops, by the role that passes them.
POINTS: Mapping[str, tuple[str, ...]] = {
    "dispatcher": (
        "dialer.after_match", "dialer.after_intent", "dialer.before_send", "dialer.after_send", "results.before_write",
    ),
    "api": ("inbox.after_commit",),
    "mailbox": ("mailbox.after_claim", "mailbox.before_write", "mailbox.before_commit", "mailbox.after_commit"),
    "jobs": ("jobs.after_claim", "jobs.after_run", "jobs.before_finish"),
    "router": (
        "router.after_allocate", "router.after_release", "router.after_heartbeat", "router.after_register",
        "router.after_beats", "router.after_balance", "router.after_recover", "router.before_note", "router.after_note",
    ),
    "control": (
        "reminders.after_claim", "reminders.after_lead", "reminders.after_occurrence", "reminders.before_commit",
        "reminders.after_commit",
    ),
}  # fmt: skip
AT_POINTS = tuple(
    f"{role}-{n}@{point}" for role, points in POINTS.items() for n in (1, 2) for point in points
)
EVERYBODY = (*PROCESSES, *APPLICATIONS)
# Longer than a sender's deadline and a request's time-out together: whoever slept over it must not dial any more.
STOPPED_S = (0.4, 4.5)
OUTAGE_S = (0.3, 2.5)
CLOCK_JUMPS_S = (-300.0, -20.0, -2.0, 2.0, 20.0, 300.0)
# A full disk: what is left of the engines' file system.
LEFT_BYTES = 64 * 1024


# Processes


async def killed(world: World, strike: Strike) -> None:
    world.kill(strike.target)


async def stopped(world: World, strike: Strike) -> None:
    process = world.processes[strike.target]
    process.freeze()
    await asyncio.sleep(strike.for_s)
    process.thaw()


async def terminated(world: World, strike: Strike) -> None:
    """Asked to end, as a deployment does; its successor starts when it is gone."""
    world.processes[strike.target].signal(signal.SIGTERM)


async def crashed_at_point(world: World, strike: Strike) -> None:
    name, _, point = strike.target.partition("@")
    await _restarted(world, name, crash_at=point)


async def stopped_at_point(world: World, strike: Strike) -> None:
    """Like a machine that is paused there, and goes on."""
    name, _, point = strike.target.partition("@")
    await _restarted(world, name, stop_at=point)
    process = world.processes[name]
    with suppress(AssertionError):  # it may have nothing to do there
        await eventually(lambda: not process.is_running or process.is_frozen, timeout_s=3)
    await asyncio.sleep(strike.for_s)
    process.thaw()


async def rolled(world: World, _strike: Strike) -> None:
    """Every process of the platform is replaced, one after the other: the next one when the successor listens."""
    for name in PROCESSES:
        old = world.processes[name]
        old.signal(signal.SIGTERM)
        with suppress(AssertionError):
            await old.ended(timeout_s=6)
            await eventually(lambda: world.processes[name] is not old, timeout_s=3)  # noqa: B023, awaited here
            await listening(world.machine.ports[name], timeout_s=6)


async def _restarted(
    world: World, name: str, *, crash_at: str | None = None, stop_at: str | None = None
) -> None:
    world.kill(name, keep_down=True)
    await world.processes[name].ended()
    if stop_at is not None:
        world.start(name, stop_at=stop_at)
    else:
        world.start(name, crash_at=crash_at)


async def clock_set(world: World, strike: Strike) -> None:
    """The wall clock of one process."""
    path = world.surroundings(strike.target)
    surroundings.write(path, clock_s=strike.amount)
    await asyncio.sleep(strike.for_s)
    surroundings.write(path)


# Valkey


async def valkey_flushed(world: World, _strike: Strike) -> None:
    await _command(world, "FLUSHALL")


async def scripts_flushed(world: World, _strike: Strike) -> None:
    for _ in range(3):
        await _command(world, "SCRIPT", "FLUSH")
        await asyncio.sleep(0.2)


async def keys_lost(world: World, strike: Strike) -> None:
    """A share of all keys, as after an eviction."""
    client: Any = world.engines.valkey_client()
    try:
        keys = sorted([key async for key in client.scan_iter(f"*{world.domain}*", count=500)])
        step = max(1, round(1 / strike.amount))
        if lost := keys[::step]:
            await client.delete(*lost)
    except Exception:
        return  # it is away, which is worse
    finally:
        await client.aclose()


async def valkey_killed(world: World, strike: Strike) -> None:
    """Killed, and started again with what it had on disk."""
    async with world.valkey_lock:
        await world.engines.kill_valkey()
        await asyncio.sleep(strike.for_s)
        await world.engines.start_valkey()


async def valkey_lost(world: World, strike: Strike) -> None:
    """Killed, and started again without its file."""
    async with world.valkey_lock:
        await world.engines.kill_valkey()
        await asyncio.sleep(strike.for_s)
        await world.engines.start_valkey(is_empty=True)


async def valkey_stopped(world: World, strike: Strike) -> None:
    async with world.valkey_lock:
        os.kill(world.engines.valkey_pid, signal.SIGSTOP)
        await asyncio.sleep(strike.for_s)
        os.kill(world.engines.valkey_pid, signal.SIGCONT)


async def valkey_failed_over(world: World, strike: Strike) -> None:
    """A replica that lacks the last writes is promoted."""
    async with world.valkey_lock:
        await world.engines.fail_over(strike.for_s)


async def valkey_unreachable(world: World, strike: Strike) -> None:
    """For the second process of each role: connections are cut and refused."""
    world.to_valkey.refuse()
    world.to_valkey.cut()
    await asyncio.sleep(strike.for_s)
    await world.to_valkey.heal()


async def valkey_silent(world: World, strike: Strike) -> None:
    """For the second process of each role: what it says arrives later."""
    world.to_valkey.black_hole()
    await asyncio.sleep(strike.for_s)
    await world.to_valkey.heal()


async def valkey_replies_lost(world: World, _strike: Strike) -> None:
    """Scripts run, and who sent them never learns of it."""
    for _ in range(6):
        world.to_valkey.swallow_reply(after=b"EVALSHA")
        await asyncio.sleep(0.15)
    await world.to_valkey.heal()


# Postgres


def postgres_restarted(how: signal.Signals) -> Inflict:
    async def inflict(world: World, strike: Strike) -> None:
        async with world.postgres_lock:
            await world.engines.end_postgres(how)
            await asyncio.sleep(strike.for_s)
            await world.engines.start_postgres()

    return inflict


async def postgres_unreachable(world: World, strike: Strike) -> None:
    world.to_postgres.refuse()
    world.to_postgres.cut()
    await asyncio.sleep(strike.for_s)
    await world.to_postgres.heal()


async def postgres_silent(world: World, strike: Strike) -> None:
    world.to_postgres.black_hole()
    await asyncio.sleep(strike.for_s)
    await world.to_postgres.heal()


async def commits_cut(world: World, _strike: Strike) -> None:
    """Commits take effect, and their connections are gone."""
    for _ in range(6):
        world.to_postgres.swallow_reply(after=b"COMMIT;")
        await asyncio.sleep(0.15)
    await world.to_postgres.heal()


async def foreign_transaction(world: World, strike: Strike) -> None:
    """Somebody else keeps a snapshot and a lock on rows for a while."""
    with suppress(*AWAY):
        connection = await asyncpg.connect(world.database_url, timeout=3)
        try:
            async with connection.transaction(isolation="repeatable_read"):
                await connection.execute("SELECT id FROM leads ORDER BY id LIMIT 3 FOR UPDATE")
                await asyncio.sleep(strike.for_s)
        finally:
            connection.terminate()


async def connections_ended(world: World, _strike: Strike) -> None:
    """An administrator ends every session of this database."""
    with suppress(*AWAY):
        await world.value(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


async def disk_full(world: World, strike: Strike) -> None:
    """Nothing can be written to the engines' file system."""
    folder = world.engines.folder
    filler = folder / "filler"
    with suppress(OSError):
        left = os.statvfs(folder)
        size = max(0, left.f_bavail * left.f_frsize - LEFT_BYTES)
        with filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
    await asyncio.sleep(strike.for_s)
    filler.unlink(missing_ok=True)
    await _revive(world)


async def _revive(world: World) -> None:
    """An engine that could not write has ended itself."""
    async with world.valkey_lock, world.postgres_lock:
        await world.engines.revive()


async def engine_clock_set(world: World, strike: Strike) -> None:
    with suppress(*AWAY):
        await server_clock.jump(world.database_url, strike.amount)
    await asyncio.sleep(strike.for_s)
    await _until_done(lambda: server_clock.jump(world.database_url, -strike.amount))


# Carriers


def carrier_misbehaves(**faults: Any) -> Inflict:
    """For a while, in addition to what the plan gives the carriers all the time."""

    async def inflict(world: World, strike: Strike) -> None:
        before = world.carrier.faults
        world.carrier.faults = Faults(
            **{
                **msgspec.to_builtins(before),
                **{name: 0.0 for name in _SHARES if faults.keys() & _SHARES},
                **faults,
            }
        )
        await asyncio.sleep(strike.for_s)
        world.carrier.faults = world.plan.carrier_faults()

    return inflict


_SHARES = {kind.value for kinds in (ReplyFault, WebhookFault) for kind in kinds}


async def carrier_refuses(world: World, strike: Strike) -> None:
    """Nothing listens at its address, and open connections are gone."""
    await world.carrier_gate.close()
    await asyncio.sleep(strike.for_s)
    await world.carrier_gate.open()


async def carrier_hangs(world: World, strike: Strike) -> None:
    """It takes connections and requests, and says nothing."""
    world.carrier_gate.proxy.black_hole()
    await asyncio.sleep(strike.for_s)
    await world.carrier_gate.proxy.heal()


async def names_gone(world: World, strike: Strike) -> None:
    """No process can resolve the carriers' host."""
    for name in PROCESSES:
        surroundings.write(world.surroundings(name), resolves=False)
    await asyncio.sleep(strike.for_s)
    for name in PROCESSES:
        surroundings.write(world.surroundings(name))


async def webhooks_forged(world: World, _strike: Strike) -> None:
    """Requests that only look like a carrier's: without a signature, with a false one, and with another call's id."""
    dials = world.carrier.ledger.dials[-5:]
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=3)) as session:
        for dial in dials:
            form = {"CallSid": dial.call_id, "CallStatus": "completed", "AccountSid": dial.account}
            for headers in ({}, {"X-Twilio-Signature": "Zm9yZ2Vk"}):
                url = f"{world.url}/webhooks/twilio/status?attempt={dial.attempt}"
                with suppress(aiohttp.ClientError, TimeoutError):
                    async with session.post(url, data=form, headers=headers) as answer:
                        world.forged.append(answer.status)


async def webhooks_crossed(world: World, strike: Strike) -> None:
    """The carrier's own webhooks, truly signed, come again for calls that are long over: late, and all at once."""
    await carrier_misbehaves(webhook_doubled=0.5, webhook_reordered=0.5)(world, strike)


# Pods


async def pods_killed(world: World, strike: Strike) -> None:
    """One of those that are alone, or all of the process with many; back under the same names."""
    pods = next(
        (each for each in world.live_pods if (len(each.names) > 1) == (strike.target == "many")), None
    )
    if pods is None:
        return
    world.kill_pods(pods)
    await asyncio.sleep(strike.for_s)
    world.start_pods(pods.names)


async def pods_vanish(world: World, strike: Strike) -> None:
    """All of them at once."""
    gone = world.live_pods
    for pods in gone:
        world.kill_pods(pods)
    await asyncio.sleep(strike.for_s)
    for pods in gone:
        world.start_pods(pods.names)


async def pod_stopped(world: World, strike: Strike) -> None:
    """It hangs: no heartbeat, no word to the caller, and its sockets stay open."""
    for pods in world.live_pods[-1:]:
        pods.process.freeze()
        await asyncio.sleep(strike.for_s)
        pods.process.thaw()


async def pod_drained(world: World, strike: Strike) -> None:
    """A rollout ends it, and another one comes under the same name."""
    for pods in world.live_pods[-1:]:
        pods.process.signal(signal.SIGTERM)
        await asyncio.sleep(strike.for_s)
        with suppress(AssertionError):
            await pods.process.ended(timeout_s=6)
        world.kill_pods(pods)
        world.start_pods(pods.names)


def pod_ill(how: signal.Signals) -> Inflict:
    async def inflict(world: World, strike: Strike) -> None:
        for pods in world.live_pods[-2:]:
            pods.process.signal(how)
        await asyncio.sleep(strike.for_s)
        for pods in world.live_pods:
            pods.process.signal(signal.SIGHUP)

    return inflict


FAULTS: Mapping[str, tuple[Inflict, Kind]] = {
    "process killed": (killed, Kind(EVERYBODY)),
    "process stopped": (stopped, Kind(EVERYBODY, STOPPED_S)),
    "process terminated": (terminated, Kind(EVERYBODY)),
    "process crashed at a point": (crashed_at_point, Kind(AT_POINTS)),
    "process stopped at a point": (stopped_at_point, Kind(AT_POINTS, STOPPED_S)),
    "process clock set": (clock_set, Kind(PROCESSES, (1.0, 4.0), CLOCK_JUMPS_S)),
    "platform rolled": (rolled, Kind()),
    "valkey flushed": (valkey_flushed, Kind()),
    "valkey scripts flushed": (scripts_flushed, Kind()),
    "valkey keys lost": (keys_lost, Kind(amounts=(0.1, 0.3, 0.5))),
    "valkey killed": (valkey_killed, Kind(for_s=OUTAGE_S)),
    "valkey lost": (valkey_lost, Kind(for_s=OUTAGE_S)),
    "valkey stopped": (valkey_stopped, Kind(for_s=OUTAGE_S)),
    "valkey failed over": (valkey_failed_over, Kind(for_s=(0.3, 1.5))),
    "valkey unreachable": (valkey_unreachable, Kind(for_s=OUTAGE_S)),
    "valkey silent": (valkey_silent, Kind(for_s=OUTAGE_S)),
    "valkey replies lost": (valkey_replies_lost, Kind()),
    "postgres restarted fast": (postgres_restarted(signal.SIGINT), Kind(for_s=(0.0, 1.0))),
    "postgres restarted immediately": (postgres_restarted(signal.SIGQUIT), Kind(for_s=(0.0, 1.0))),
    "postgres killed": (postgres_restarted(signal.SIGKILL), Kind(for_s=(0.0, 1.0))),
    "postgres unreachable": (postgres_unreachable, Kind(for_s=OUTAGE_S)),
    "postgres silent": (postgres_silent, Kind(for_s=OUTAGE_S)),
    "commits cut": (commits_cut, Kind()),
    "foreign transaction": (foreign_transaction, Kind(for_s=(1.0, 5.0))),
    "connections ended": (connections_ended, Kind()),
    "disk full": (disk_full, Kind(for_s=(0.5, 1.5))),
    "engine clock set": (engine_clock_set, Kind(for_s=(1.0, 4.0), amounts=CLOCK_JUMPS_S)),
    "carrier slow": (carrier_misbehaves(slow_reply=0.9), Kind(for_s=(1.0, 3.0))),
    "carrier fails after dialling": (carrier_misbehaves(error_after_dial=0.6), Kind(for_s=(0.5, 2.0))),
    "carrier throttles": (carrier_misbehaves(throttled=0.8), Kind(for_s=(0.5, 2.0))),
    "carrier says garbage": (carrier_misbehaves(garbage_after_dial=0.6), Kind(for_s=(0.5, 2.0))),
    "carrier list down": (carrier_misbehaves(list_down=True), Kind(for_s=(1.0, 4.0))),
    "carrier list lags": (carrier_misbehaves(list_lag_s=3.0), Kind(for_s=(1.0, 4.0))),
    "carrier refuses": (carrier_refuses, Kind(for_s=OUTAGE_S)),
    "carrier hangs": (carrier_hangs, Kind(for_s=OUTAGE_S)),
    "names gone": (names_gone, Kind(for_s=OUTAGE_S)),
    "webhooks lost": (carrier_misbehaves(webhook_lost=0.7), Kind(for_s=(0.5, 2.0))),
    "webhooks doubled": (carrier_misbehaves(webhook_doubled=0.9), Kind(for_s=(0.5, 3.0))),
    "webhooks late": (carrier_misbehaves(webhook_late=0.9), Kind(for_s=(0.5, 3.0))),
    "webhooks reordered": (carrier_misbehaves(webhook_reordered=0.9), Kind(for_s=(0.5, 3.0))),
    "webhooks forged": (webhooks_forged, Kind()),
    "pods killed": (pods_killed, Kind(("one", "many"), (0.2, 2.0))),
    "pods vanish": (pods_vanish, Kind(for_s=(0.5, 3.0))),
    "pod stopped": (pod_stopped, Kind(for_s=(1.0, 6.0))),
    "pod drained": (pod_drained, Kind(for_s=(0.2, 1.0))),
    "pod refuses streams": (pod_ill(signal.SIGUSR1), Kind(for_s=(1.0, 4.0))),
    "pod leaves handshakes": (pod_ill(signal.SIGUSR2), Kind(for_s=(1.0, 4.0))),
    "pod swallows cancellation": (pod_ill(signal.SIGWINCH), Kind(for_s=(1.0, 4.0))),
}
KINDS: Mapping[str, Kind] = {name: kind for name, (_, kind) in FAULTS.items()}


async def inflict(world: World, strike: Strike) -> None:
    await FAULTS[strike.fault][0](world, strike)


async def heal(world: World) -> None:
    """End whatever is left: everybody runs, everything is reachable, every clock is right."""
    await world.to_postgres.heal()
    await world.to_valkey.heal()
    await world.carrier_gate.open()
    await world.carrier_gate.proxy.heal()
    (world.engines.folder / "filler").unlink(missing_ok=True)
    await _revive(world)
    world.carrier.faults = Faults()
    for name in EVERYBODY:
        surroundings.write(world.surroundings(name))
        world.kept_down.discard(name)
        process = world.processes[name]
        process.thaw()
    for pods in world.live_pods:
        pods.process.thaw()
        pods.process.signal(signal.SIGHUP)
    present = {name for pods in world.live_pods for name in pods.names}
    for pods in list(world.pods):
        if missing := [name for name in pods.names if name not in present]:
            world.start_pods(missing)
            present.update(missing)


async def _command(world: World, *words: str) -> None:
    client: Any = world.engines.valkey_client()
    try:
        await client.execute_command(*words)
    except Exception:
        return  # it is away, which is worse
    finally:
        await client.aclose()


async def _until_done(work: Callable[[], Awaitable[None]], limit_s: float = 30.0) -> None:
    deadline_s = asyncio.get_running_loop().time() + limit_s
    while True:
        try:
            return await work()
        except AWAY:
            if asyncio.get_running_loop().time() > deadline_s:
                raise
            await asyncio.sleep(0.2)
