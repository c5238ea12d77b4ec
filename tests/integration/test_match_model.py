"""The dispatch scripts against a plain model: whatever is done in whatever order, they agree.

The model knows nothing of scores and sets. It knows leads, channels and holders, and what must always hold:
a channel has one holder, a number never more than its maximum, a lead is in one place, nothing is granted that is not
due, not current or not allowed, the first of a flow comes first, and no channel is idle while somebody may have it.

Who comes first among flows is a model of its own: start-time fair queuing in a few lines, grant by grant.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from trunkline.bus import channels, connection, epoch, schedule
from trunkline.bus.channels import Configuration
from trunkline.bus.connection import Bus
from trunkline.bus.keys import Keys
from trunkline.bus.schedule import GiveBack, GrantReturn
from trunkline.model import Entry, Flow, Grant, Holder, NumberLimit
from trunkline.value import replace

# With their resellers.
MERCHANTS = {"a": "r", "b": "r", "c": "s"}
POOLS = ("p", "q")
CAMPAIGN = UUID(int=2**100)
# A merchant, its campaign, a reseller, everybody.
STOPPABLE = ("all", "m/a", "m/b", "r/s", f"c/a/{CAMPAIGN}", f"c/b/{CAMPAIGN}")
LIMITED = ("m/a", "m/b", "m/c", f"c/a/{CAMPAIGN}", f"c/c/{CAMPAIGN}")
PAST = datetime(2025, 1, 1, tzinfo=UTC)
# Within the horizon, from the beginning of an example: a suite runs for longer than that.
SOON = timedelta(minutes=10)
# So far ahead a match may look: past that future.
AHEAD_MS = 11 * 60 * 1000
# Beyond the horizon: it stays in Postgres.
FAR = datetime.now(UTC) + timedelta(days=1)
CAP = 6


@dataclass
class Model:
    """What a careful person with paper would know."""

    numbers: dict[UUID, tuple[str, int]] = field(default_factory=dict)
    caps: dict[str, int] = field(default_factory=dict)
    stops: set[str] = field(default_factory=set)
    # Every version that was ever offered, and the newest of each lead.
    offered: dict[UUID, Entry] = field(default_factory=dict)
    held: dict[UUID, Grant] = field(default_factory=dict)
    foreign: dict[UUID, Holder] = field(default_factory=dict)
    # Leads whose own pool had nothing free at the end of a match: these may have moved to their next pool.
    overflown: set[tuple[UUID, int]] = field(default_factory=set)
    # Leads that a match has seen ahead of their time: they may wait for a channel by now.
    foreseen: set[tuple[UUID, int]] = field(default_factory=set)

    def live_of(self, subject: str) -> int:
        return sum(subject in subjects(self.offered[g.lead_id].flow) for g in self.held.values())

    def used(self, number: UUID) -> int:
        return sum(g.number_id == number for g in self.held.values()) + sum(
            h.number_id == number for h in self.foreign.values()
        )


def subjects(flow: Flow) -> set[str]:
    """What a stop or a limit of a flow may be named."""
    return {
        "all",
        f"r/{flow.reseller_id}",
        f"m/{flow.merchant_id}",
        f"c/{flow.merchant_id}/{flow.campaign_id}",
    }


@dataclass(frozen=True)
class Waiting:
    """A lead that waits for a channel, as Valkey has it."""

    lead: UUID
    flow: Flow
    rank: tuple[int, int]


class Dispatch(RuleBasedStateMachine):
    """One Valkey, one model, and everything that can happen to both."""

    # One connection for all examples, and other keys for each.
    loop: asyncio.AbstractEventLoop
    shared: Bus
    grants: "Bundle[Grant]" = Bundle("grants")
    leads: "Bundle[Entry]" = Bundle("leads")

    def __init__(self) -> None:
        super().__init__()
        self.bus = self.shared.at_epoch(0)
        self.bus.keys = Keys(prefix=f"model-{uuid4().hex[:12]}")
        self.model = Model()
        self.ids = 0
        self.soon = datetime.now(UTC) + SOON

    def new_id(self) -> UUID:
        """Ids that are the same in every replay."""
        self.ids += 1
        return UUID(int=self.ids)

    def do(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    @initialize(sizes=st.lists(st.integers(1, 3), min_size=2, max_size=4))
    def begin(self, sizes: list[int]) -> None:
        self.do(epoch.begin(self.bus, 1))
        assert self.do(epoch.publish(self.bus, 1))
        for n, size in enumerate(sizes):
            self.model.numbers[self.new_id()] = (POOLS[n % 2], size)
        self.configure()

    def configure(self) -> None:
        limits = tuple(NumberLimit(number, pool, size) for number, (pool, size) in self.model.numbers.items())
        stops = dict.fromkeys(self.model.stops, "test")
        self.do(channels.configure(self.bus, Configuration(limits, {"a": 3}, self.model.caps, stops)))

    @rule(
        target=leads,
        merchant=st.sampled_from(sorted(MERCHANTS)),
        campaign=st.sampled_from([None, CAMPAIGN]),
        pool=st.sampled_from(POOLS),
        due=st.sampled_from([PAST, PAST + timedelta(seconds=1), SOON, FAR]),
        priority=st.integers(1, 3),
        overflows=st.booleans(),
    )
    def add(
        self,
        merchant: str,
        campaign: UUID | None,
        pool: str,
        due: datetime | timedelta,
        priority: int,
        overflows: bool,
    ) -> Entry:
        flow = Flow(pool, MERCHANTS[merchant], merchant, campaign)
        entry = self.entry(self.new_id(), 1, flow, due, priority, overflows)
        self.model.offered[entry.lead_id] = entry
        self.do(schedule.add(self.bus, [entry], cap=CAP))
        return entry

    @rule(target=leads, lead=leads, pool=st.sampled_from(POOLS), due=st.sampled_from([PAST, SOON, FAR]))
    def edit(self, lead: Entry, pool: str, due: datetime | timedelta) -> Entry:
        newest = self.model.offered[lead.lead_id]
        flow = replace(newest.flow, pool_id=pool)
        overflows = newest.next_pool_id is not None
        entry = self.entry(lead.lead_id, newest.version + 1, flow, due, newest.priority, overflows)
        self.model.offered[lead.lead_id] = entry
        self.do(schedule.add(self.bus, [entry], cap=CAP))
        return entry

    def entry(
        self,
        lead: UUID,
        version: int,
        flow: Flow,
        due: datetime | timedelta,
        priority: int,
        overflows: bool,
    ) -> Entry:
        next_pool = POOLS[1 - POOLS.index(flow.pool_id)] if overflows else None
        due_at = self.soon if isinstance(due, timedelta) else due
        return Entry(lead, version, flow, due_at, priority, next_pool_id=next_pool, moves_after_s=0)

    @rule(lead=leads)
    def add_again(self, lead: Entry) -> None:
        newest = self.model.offered[lead.lead_id]
        if newest.due_at == FAR and lead.version < newest.version:
            return  # nothing is remembered of a lead that went beyond the horizon: the intent refuses the old version
        self.do(schedule.add(self.bus, [lead], cap=CAP))

    @rule(target=grants, most=st.integers(1, 4), is_ahead=st.booleans())
    def match(self, most: int, is_ahead: bool) -> Any:
        before = {subject: self.model.live_of(subject) for subject in LIMITED}
        waited = self.waiting()
        if is_ahead:
            self.model.foreseen |= {
                (e.lead_id, e.version) for e in self.model.offered.values() if e.due_at == self.soon
            }
        ids = [self.new_id() for _ in range(most)]
        found = self.do(
            schedule.match(self.bus, ids, clock_offset_ms=0, ahead_ms=AHEAD_MS if is_ahead else 0)
        )
        assert len(found.grants) <= most
        for grant in found.grants:
            self.check(grant)
            self.model.held[grant.attempt_id] = grant
        for subject, cap in self.model.caps.items():
            assert self.model.live_of(subject) <= max(cap, before[subject])
        self.check_order(waited, [grant.lead_id for grant in found.grants])
        if len(found.grants) < most and found.next_in_s != 0:
            self.nobody_waits_for_an_idle_channel()
        self.model.overflown |= {
            (e.lead_id, e.version) for e in self.model.offered.values() if self.is_full(e.flow.pool_id)
        }
        return multiple(*found.grants)

    def check(self, grant: Grant) -> None:
        newest = self.model.offered[grant.lead_id]
        assert grant.version == newest.version, "a stale version was granted"
        is_foreseen = (newest.lead_id, newest.version) in self.model.foreseen
        assert newest.due_at < datetime.now(UTC) or is_foreseen, "granted before its time"
        pool, size = self.model.numbers[grant.number_id]
        if newest.flow.pool_id != pool:
            assert newest.next_pool_id == pool
            assert (newest.lead_id, newest.version) in self.model.overflown, "its own pool had a channel"
        assert 1 <= grant.channel_no <= size
        assert self.model.used(grant.number_id) < size, "a number over its channels"
        assert not subjects(newest.flow) & self.model.stops, "granted though it is stopped"
        current = [
            g for g in self.model.held.values() if (g.lead_id, g.version) == (grant.lead_id, grant.version)
        ]
        assert current == [], "a lead granted twice"

    def waiting(self) -> list[Waiting]:
        """Leads with their place: version|place|flow|priority|due|…"""
        leads = self.do(self.bus.read(self.bus.client.hgetall(f"{self.bus.projection}leads")))
        found = []
        for lead, record in leads.items():
            _, place, flow, priority, due, *_ = record.split("|")
            if place == "w":
                found.append(Waiting(UUID(lead), Flow.parse(flow), (int(priority), int(due))))
        return found

    def check_order(self, waited: list[Waiting], granted: list[UUID]) -> None:
        """Within a flow: priority, then due."""
        for flow in {each.flow for each in waited}:
            ranks = {each.lead: each.rank for each in waited if each.flow == flow}
            given = [ranks.pop(lead) for lead in granted if lead in ranks]
            assert given == sorted(given), "the second of a flow came before the first"
            assert not given or not ranks or given[-1] <= min(ranks.values()), "somebody was passed over"

    def nobody_waits_for_an_idle_channel(self) -> None:
        if "all" in self.model.stops:
            return
        parked = set(self.do(self.bus.read(self.bus.client.zrange(f"{self.bus.projection}parked", 0, -1))))
        for flow in {each.flow for each in self.waiting()}:
            is_limited = any(
                self.model.live_of(subject) >= self.model.caps.get(subject, 10**9)
                for subject in subjects(flow)
            )
            is_allowed = not subjects(flow) & self.model.stops and not is_limited
            if is_allowed and str(flow) not in parked:
                assert self.is_full(flow.pool_id), f"{flow} waits beside an idle channel"

    def is_full(self, pool: str) -> bool:
        return all(
            self.model.used(number) >= size
            for number, (its, size) in self.model.numbers.items()
            if its == pool
        )

    @rule(grant=grants)
    def release(self, grant: Grant) -> None:
        freed = self.do(channels.release(self.bus, [grant.attempt_id]))
        assert freed == (1 if self.model.held.pop(grant.attempt_id, None) else 0)

    @rule(grant=grants, how=st.sampled_from([GrantReturn.AGAIN, GrantReturn.FORGET]))
    def give_back(self, grant: Grant, how: GrantReturn) -> None:
        given = self.do(schedule.give_back(self.bus, [GiveBack(grant.attempt_id, how)]))
        assert given == (1 if self.model.held.pop(grant.attempt_id, None) else 0)

    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        """Postgres says who truly holds a channel: whoever we believed in is out."""
        number = data.draw(st.sampled_from(sorted(self.model.numbers, key=str)))
        channel = data.draw(st.integers(1, max(1, self.model.numbers[number][1])))
        truth = Holder(self.new_id(), number, channel)
        self.do(channels.hold(self.bus, [truth]))
        everybody: list[tuple[UUID, Grant | Holder]] = [*self.model.held.items(), *self.model.foreign.items()]
        for attempt, other in everybody:
            if (other.number_id, other.channel_no) == (number, channel):
                self.model.held.pop(attempt, None)
                self.model.foreign.pop(attempt, None)
        self.model.foreign[truth.attempt_id] = truth

    @rule(data=st.data())
    def foreign_call_ends(self, data: st.DataObject) -> None:
        if self.model.foreign:
            attempt = data.draw(st.sampled_from(sorted(self.model.foreign, key=str)))
            assert self.do(channels.release(self.bus, [attempt])) == 1
            del self.model.foreign[attempt]

    @rule(data=st.data(), size=st.integers(0, 3))
    def resize(self, data: st.DataObject, size: int) -> None:
        number = data.draw(st.sampled_from(sorted(self.model.numbers, key=str)))
        self.model.numbers[number] = (self.model.numbers[number][0], size)
        self.configure()

    @rule(subject=st.sampled_from(LIMITED), cap=st.none() | st.integers(0, 2))
    def limit(self, subject: str, cap: int | None) -> None:
        self.model.caps.pop(subject, None)
        if cap is not None:
            self.model.caps[subject] = cap
        self.configure()

    @rule(subject=st.sampled_from(STOPPABLE))
    def stop_or_go(self, subject: str) -> None:
        self.model.stops ^= {subject}
        self.configure()

    @invariant()
    def holders_agree(self) -> None:
        held = {h.attempt_id: (h.number_id, h.channel_no) for h in self.do(channels.holders(self.bus))}
        known: list[tuple[UUID, Grant | Holder]] = [*self.model.held.items(), *self.model.foreign.items()]
        assert held == {attempt: (h.number_id, h.channel_no) for attempt, h in known}

    @invariant()
    def no_flow_is_over_its_cap(self) -> None:
        flows = [
            Flow(pool, reseller, merchant, campaign)
            for pool in POOLS
            for merchant, reseller in MERCHANTS.items()
            for campaign in (None, CAMPAIGN)
        ]
        # A lead that is given back or has moved may stand beside a full flow until the flow is served.
        assert max(self.do(schedule.sizes(self.bus, flows))) <= CAP + 24

    @invariant()
    def nothing_far_is_here(self) -> None:
        known = set(self.do(self.bus.read(self.bus.client.hkeys(f"{self.bus.projection}leads"))))
        assert not known & {str(e.lead_id) for e in self.model.offered.values() if e.due_at == FAR}

    def teardown(self) -> None:
        """Whatever was done, every due lead that is still known is granted once nothing stands in its way."""
        if self.bus.epoch:
            self.everything_due_is_granted()

    def everything_due_is_granted(self) -> None:
        self.model.stops, self.model.caps = set(), {}
        for number, (pool, _) in self.model.numbers.items():
            self.model.numbers[number] = (pool, 500)
        for pool in POOLS:
            self.model.numbers.setdefault(self.new_id(), (pool, 500))
        self.configure()
        self.do(schedule.add(self.bus, [e for e in self.model.offered.values() if e.due_at == PAST]))
        granted = {(g.lead_id, g.version) for g in self.model.held.values()}
        for _ in range(200):
            # A second later: flows that were parked are awake.
            found = self.do(
                schedule.match(self.bus, [self.new_id() for _ in range(50)], clock_offset_ms=2000)
            )
            granted |= {(g.lead_id, g.version) for g in found.grants}
            if not found.grants:
                break
        due = {(e.lead_id, e.version) for e in self.model.offered.values() if e.due_at == PAST}
        assert due <= granted, "a due lead was forgotten"


@pytest.mark.timeout(300)
def test_the_scripts_agree_with_a_plain_model(redis_url: str) -> None:
    Dispatch.loop = asyncio.new_event_loop()
    Dispatch.shared = connection.connect(redis_url, Keys())
    try:
        run()
    finally:
        Dispatch.loop.run_until_complete(Dispatch.shared.close())
        Dispatch.loop.close()


def run() -> None:
    run_state_machine_as_test(
        Dispatch,
        settings=settings(
            max_examples=150,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )


# Fairness


@dataclass
class FairQueue:
    """Start-time fair queuing as the books have it: the lowest start goes first, and pays for its turn."""

    weights: dict[str, int]
    virtual: Fraction = Fraction(0)
    starts: dict[str, Fraction] = field(default_factory=dict)
    finishes: dict[str, Fraction] = field(default_factory=dict)
    waiting: Counter[str] = field(default_factory=Counter)

    def arrive(self, merchant: str, leads: int) -> None:
        if leads and not self.waiting[merchant]:
            self.starts[merchant] = max(self.virtual, self.finishes.pop(merchant, Fraction(0)))
        self.waiting[merchant] += leads

    def serve(self) -> str | None:
        if not self.starts:
            return None
        # Equal starts go by name, as the members of a sorted set do.
        merchant = min(self.starts, key=lambda each: (self.starts[each], each))
        self.virtual = self.starts[merchant]
        finish = self.virtual + Fraction(1, self.weights[merchant])
        self.waiting[merchant] -= 1
        if self.waiting[merchant]:
            self.starts[merchant] = finish
        else:
            del self.starts[merchant]
            self.finishes[merchant] = finish
        return merchant


@given(
    # Powers of two: their fractions are exact in Lua's numbers too, so that equal starts are equal.
    weights=st.lists(st.sampled_from([1, 2, 4, 8]), min_size=2, max_size=4),
    rounds=st.lists(
        st.tuples(st.lists(st.integers(0, 6), min_size=4, max_size=4), st.integers(1, 12)), max_size=8
    ),
)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
def test_flows_take_turns_as_fair_queuing_says(
    redis_url: str, weights: list[int], rounds: list[tuple[list[int], int]]
) -> None:
    asyncio.run(compare(redis_url, dict(zip("abcd", weights, strict=False)), rounds))


async def compare(redis_url: str, weights: dict[str, int], rounds: list[tuple[list[int], int]]) -> None:
    bus = connection.connect(redis_url, Keys(prefix=f"fair-{uuid4().hex[:12]}"))
    await epoch.begin(bus, 1)
    await epoch.publish(bus, 1)
    limits = (NumberLimit(uuid4(), "p", 1000),)
    await channels.configure(bus, Configuration(numbers=limits, weights=weights))
    queue = FairQueue(weights)
    for arrivals, most in rounds:
        for merchant, leads in zip(weights, arrivals, strict=False):
            queue.arrive(merchant, leads)
            entries = [Entry(uuid4(), 1, Flow("p", "r", merchant), PAST) for _ in range(leads)]
            await schedule.add(bus, entries)
        found = await schedule.match(bus, [uuid4() for _ in range(most)], clock_offset_ms=0)
        flows = {holder.attempt_id: holder.flow for holder in await channels.holders(bus)}
        granted = [flow.merchant_id for grant in found.grants if (flow := flows[grant.attempt_id])]
        expected = [queue.serve() for _ in range(most)]
        assert granted == [merchant for merchant in expected if merchant]
    await bus.close()
