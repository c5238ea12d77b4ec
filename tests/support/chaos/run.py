"""One run: tenants work while faults strike, then everything is healed, must become quiet, and is judged."""

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.support.chaos import faults, tenancy
from tests.support.chaos.checkers import answered_without_agent, violations
from tests.support.chaos.evidence import Evidence, ProcessState, Waiting, gather
from tests.support.chaos.load import Diary, Tenants
from tests.support.chaos.machine import PROCESSES, Machine, World
from tests.support.chaos.plan import Plan, Strike
from tests.support.hurry import AWAY, hurrying
from tests.support.waiting import eventually
from trunkline.bus import channels, epoch
from trunkline.client import ApiError, TrunklineClient, Unreachable
from trunkline.errors import BusUnavailable

# Everything that was asked for has happened within this of healing.
QUIET_LIMIT_S = 45.0
VALKEY_LIMIT_S = 15.0
# A strike that takes longer than it says waits for something that does not come.
STRIKE_LIMIT_S = 40.0
REST_S = 1.0
DIALS_MIN = 50
# Where a record of `leads` has its due time: version, place, flow, priority, due, …
_DUE_MS = 4
_LEFT = """
SELECT (SELECT count(*) FROM leads WHERE status = 'PROCESSING'
            OR (status = 'BACKLOG' AND due_at < clock_timestamp() + interval '1 minute' AND merchant_id <> $1
                AND coalesce(campaign_id::text, '') <> ALL ($2)))
     + (SELECT count(*) FROM attempts WHERE holds_channel)
     + (SELECT count(*) FROM mailboxes WHERE processing_status <> 'idle')
     + (SELECT count(*) FROM public.app_asked AS a WHERE NOT EXISTS (
            SELECT FROM public.app_done AS d WHERE (d.what, d.key, d.name) = (a.what, a.key, a.name)))
     + (SELECT count(*) FROM reminders WHERE status = 'ACTIVE' AND next_at < clock_timestamp())
"""
_WHAT_IS_LEFT = {
    "leads": "SELECT id, merchant_id, campaign_id, status, due_at - clock_timestamp() AS due_in, attempt_count"
    " FROM leads WHERE status = 'PROCESSING'"
    " OR (status = 'BACKLOG' AND due_at < clock_timestamp() + interval '1 minute') LIMIT 8",
    "attempts": "SELECT id, lead_id, carrier, state, end_reason, carrier_call_id, clock_timestamp() - intent_at AS age,"
    " next_check_at - clock_timestamp() AS check_in, dialer FROM attempts WHERE holds_channel LIMIT 8",
    "mailboxes": "SELECT kind, key, processing_status, failures, last_error FROM mailboxes"
    " WHERE processing_status <> 'idle' LIMIT 8",
    "application": "SELECT a.* FROM public.app_asked AS a WHERE NOT EXISTS (SELECT FROM public.app_done AS d"
    " WHERE (d.what, d.key, d.name) = (a.what, a.key, a.name)) LIMIT 8",
    "why": "SELECT reason, subject, count(*) FROM decisions GROUP BY 1, 2 ORDER BY 3 DESC LIMIT 12",
}


@dataclass
class Verdict:
    plan: Plan
    violations: list[str]
    dials: int = 0
    answered: int = 0
    without_agent: int = 0
    jobs: int = 0
    events: int = 0
    edits: int = 0
    strikes: list[str] = field(default_factory=list)
    # From healing until nothing was left to do.
    quiet_after_s: float = 0.0
    took_s: float = 0.0

    @property
    def counts(self) -> bool:
        """Whether enough was dialled to say anything."""
        return self.dials >= DIALS_MIN

    def line(self) -> dict[str, Any]:
        return {
            "seed": self.plan.seed,
            "violations": len(self.violations),
            "dials": self.dials,
            "answered": self.answered,
            "without_agent": self.without_agent,
            "jobs": self.jobs,
            "events": self.events,
            "edits": self.edits,
            "strikes": len(self.strikes),
            "quiet_after_s": round(self.quiet_after_s, 1),
            "took_s": round(self.took_s, 1),
        }


async def run(machine: Machine, plan: Plan) -> Verdict:
    began_s = time.monotonic()
    async with machine.world(plan) as world:
        tenants = Tenants(world)
        struck: list[tuple[Strike, float, float]] = []
        broken: list[str] = []
        try:
            async with tenants.at_work() as diary:
                await _strike(world, plan, struck)
                await faults.heal(world)
        except AssertionError as error:
            broken.append(f"I5: {error}")
        diary = tenants.diary
        healed_s = time.monotonic()
        broken += await _quiet(world, diary)
        quiet_after_s = time.monotonic() - healed_s
        waiting = await _waiting(world)
        left = await _left_in_valkey(world, {row.lead_id for row in waiting})
        processes = await _at_rest(world)
        accepted = await _still_accepted(world, diary)
        evidence = await gather(
            world,
            diary.entries,
            waiting=waiting,
            processes=processes,
            left_in_valkey=left,
            struck=struck,
            still_accepted=accepted,
        )
        broken += violations(evidence)
        return _verdict(evidence, diary, broken, quiet_after_s, time.monotonic() - began_s)


def _verdict(
    evidence: Evidence, diary: Diary, broken: list[str], quiet_after_s: float, took_s: float
) -> Verdict:
    return Verdict(
        evidence.plan,
        broken,
        dials=sum(dial.direction == "outbound" for dial in evidence.dials),
        answered=len(evidence.answered),
        without_agent=len(answered_without_agent(evidence)),
        jobs=sum(row.what == "job" for row in evidence.asked),
        events=sum(row.what == "event" for row in evidence.asked),
        edits=sum(
            entry.what not in ("lead", "bulk row", "ring", "reminder", "campaign") for entry in diary.entries
        ),
        strikes=[strike.fault for strike, _, _ in evidence.struck],
        quiet_after_s=quiet_after_s,
        took_s=took_s,
    )


async def _strike(world: World, plan: Plan, struck: list[tuple[Strike, float, float]]) -> None:
    """Every strike at its time, whatever the others are at."""
    loop = asyncio.get_running_loop()
    start_s = loop.time()

    async def one(strike: Strike) -> None:
        await asyncio.sleep(max(0.0, start_s + strike.at_s - loop.time()))
        began_s = time.time()
        async with asyncio.timeout(STRIKE_LIMIT_S):
            await faults.inflict(world, strike)
        struck.append((strike, began_s, time.time()))

    async with asyncio.TaskGroup() as group:
        for strike in plan.strikes:
            group.create_task(one(strike), name=strike.fault)
        group.create_task(asyncio.sleep(plan.lasts_s))


async def _quiet(world: World, diary: Diary) -> list[str]:
    """Leads of the clinic, whose day may be over, and of closed campaigns may wait: whether rightly, checkers say."""
    closed = [entry.subject for entry in diary.of("campaign closed")]

    async def is_quiet() -> bool:
        left = await world.answers(_LEFT, tenancy.CLINIC, closed)
        return left == 0 and world.carrier.ledger.live() == 0

    async with hurrying(world, settled_s=3.0):
        try:
            await eventually(is_quiet, timeout_s=QUIET_LIMIT_S, what="everything has come to an end")
            async with asyncio.timeout(20):
                await world.carrier.idle()  # webhooks that are still under way
            await eventually(is_quiet, timeout_s=QUIET_LIMIT_S, what="everything has come to an end, again")
        except (AssertionError, TimeoutError) as error:
            return [f"I5: {error}\n{await _what_is_left(world)}"]
    return []


async def _what_is_left(world: World) -> str:
    parts = []
    for what, sql in _WHAT_IS_LEFT.items():
        try:
            rows = await world.rows(sql)
        except AWAY as error:
            rows = [{"error": str(error)}]
        parts += [what, *(f"  {dict(row)}" for row in rows)]
    parts.append(f"carriers: {world.carrier.ledger.live()} live of {len(world.carrier.ledger.dials)}")
    return "\n".join(parts)


async def _waiting(world: World) -> list[Waiting]:
    """Leads that were left, and what the platform says of them."""
    rows = await world.rows("SELECT id, merchant_id, campaign_id FROM leads WHERE status = 'BACKLOG'")
    found = []
    for row in rows:
        try:
            refused_by = (await world.client.why(row["id"])).refused_by
        except (ApiError, Unreachable) as error:
            refused_by = str(error)
        campaign = str(row["campaign_id"]) if row["campaign_id"] else None
        reasons = (refused_by,) if refused_by else ()
        found.append(Waiting(str(row["id"]), row["merchant_id"], campaign, reasons))
    return found


async def _left_in_valkey(world: World, waiting: set[str]) -> str:
    """After a reconciliation: holders of channels, and leads that are due although nobody waits in Postgres."""
    seen: dict[str, object] = {}

    async def nothing_is_left() -> bool:
        try:
            await epoch.ensure(world.bus)
            seen["holders"] = [str(holder.attempt_id) for holder in await channels.holders(world.bus)]
            client, projection = world.bus.client, world.bus.projection
            leads: dict[str, str] = await world.bus.read(client.hgetall(projection.leads))
            live: dict[str, str] = await world.bus.read(client.hgetall(projection.live))
        except BusUnavailable as error:
            world.bus.epoch = 0
            seen["error"] = str(error)
            return False
        now_ms = time.time() * 1000
        seen["leads"] = [
            lead
            for lead, record in leads.items()
            if lead not in waiting and float(record.split("|")[_DUE_MS]) <= now_ms
        ]
        seen["live"] = live
        return not (seen["holders"] or seen["leads"] or live)

    try:
        await eventually(nothing_is_left, timeout_s=VALKEY_LIMIT_S, what="Valkey says the same as Postgres")
    except AssertionError:
        return str(seen)
    return ""


async def _at_rest(world: World) -> list[ProcessState]:
    """What processes do when there is nothing to do."""
    before = {name: _lines(world.folder / f"{name}.log") for name in PROCESSES}
    await asyncio.sleep(REST_S)
    connections = await world.rows(
        "SELECT client_port FROM pg_stat_activity WHERE datname = current_database() AND client_port > 0"
    )
    of_postgres = {row["client_port"] for row in connections}
    states = []
    for name in PROCESSES:
        after = _lines(world.folder / f"{name}.log")
        process = world.processes[name]
        try:
            running = psutil.Process(process.pid)
            rss_mb = running.memory_info().rss / 1e6
            held = sum(
                bool(each.laddr) and each.laddr.port in of_postgres for each in running.net_connections("tcp")
            )
        except psutil.Error:
            rss_mb, held = 0.0, 0
        states.append(ProcessState(name, rss_mb, (after - before[name]) / REST_S, held))
    return states


async def _still_accepted(world: World, diary: Diary) -> list[tuple[str, float]]:
    found = []
    for entry in diary.of("key revoked"):
        async with TrunklineClient(world.url, entry.detail["key"], timeout_s=5) as client:
            try:
                await client.me()
            except (ApiError, Unreachable):
                continue
        assert entry.answered_s is not None
        found.append((entry.subject, time.time() - entry.answered_s))
    return found


def _lines(log: Path) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0
