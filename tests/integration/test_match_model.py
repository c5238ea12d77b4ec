"""The dispatch scripts against a plain model: whatever is done in whatever order, they agree.

The model knows nothing of scores and sets. It knows leads, channels and holders, and what must always hold:
a channel has one holder, a number never more than its maximum, a lead is in one place, and nothing is granted that is
not due, not current or not allowed.
"""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, settings
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
from trunkline.bus.schedule import GiveBack, Return
from trunkline.model import Entry, Flow, Grant, Holder, NumberLimit

MERCHANTS = ("a", "b", "c")
POOLS = ("p", "q")
PAST = datetime(2025, 1, 1, tzinfo=UTC)
FUTURE = datetime.now(UTC) + timedelta(minutes=10)
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

    def live_of(self, merchant: str) -> int:
        return sum(self.offered[g.lead_id].flow.merchant_id == merchant for g in self.held.values())

    def used(self, number: UUID) -> int:
        return sum(g.number_id == number for g in self.held.values()) + sum(
            h.number_id == number for h in self.foreign.values()
        )


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
        merchant=st.sampled_from(MERCHANTS),
        pool=st.sampled_from(POOLS),
        due=st.sampled_from([PAST, PAST + timedelta(seconds=1), FUTURE, FAR]),
        priority=st.integers(1, 3),
        overflows=st.booleans(),
    )
    def add(self, merchant: str, pool: str, due: datetime, priority: int, overflows: bool) -> Entry:
        entry = self.entry(self.new_id(), 1, Flow(pool, "r", merchant), due, priority, overflows)
        self.model.offered[entry.lead_id] = entry
        self.do(schedule.add(self.bus, [entry], cap=CAP))
        return entry

    @rule(target=leads, lead=leads, pool=st.sampled_from(POOLS), due=st.sampled_from([PAST, FUTURE, FAR]))
    def edit(self, lead: Entry, pool: str, due: datetime) -> Entry:
        newest = self.model.offered[lead.lead_id]
        flow = Flow(pool, "r", newest.flow.merchant_id)
        overflows = newest.next_pool_id is not None
        entry = self.entry(lead.lead_id, newest.version + 1, flow, due, newest.priority, overflows)
        self.model.offered[lead.lead_id] = entry
        self.do(schedule.add(self.bus, [entry], cap=CAP))
        return entry

    def entry(
        self, lead: UUID, version: int, flow: Flow, due: datetime, priority: int, overflows: bool
    ) -> Entry:
        next_pool = POOLS[1 - POOLS.index(flow.pool_id)] if overflows else None
        return Entry(lead, version, flow, due, priority, next_pool_id=next_pool, moves_after_s=0)

    @rule(lead=leads)
    def add_again(self, lead: Entry) -> None:
        self.do(schedule.add(self.bus, [lead], cap=CAP))

    @rule(target=grants, most=st.integers(1, 4))
    def match(self, most: int) -> Any:
        before = {merchant: self.model.live_of(merchant) for merchant in MERCHANTS}
        found = self.do(schedule.match(self.bus, [self.new_id() for _ in range(most)], clock_offset_ms=0))
        assert len(found.grants) <= most
        for grant in found.grants:
            self.check(grant)
            self.model.held[grant.attempt_id] = grant
        for merchant, cap in self.model.caps.items():
            name = merchant.removeprefix("m/")
            assert self.model.live_of(name) <= max(cap, before[name])
        self.model.overflown |= {
            (e.lead_id, e.version) for e in self.model.offered.values() if self.is_full(e.flow.pool_id)
        }
        return multiple(*found.grants)

    def check(self, grant: Grant) -> None:
        newest = self.model.offered[grant.lead_id]
        assert grant.version == newest.version, "a stale version was granted"
        assert newest.due_at == PAST or newest.due_at < datetime.now(UTC), "granted before its time"
        pool, size = self.model.numbers[grant.number_id]
        if newest.flow.pool_id != pool:
            assert newest.next_pool_id == pool
            assert (newest.lead_id, newest.version) in self.model.overflown, "its own pool had a channel"
        assert 1 <= grant.channel_no <= size
        assert self.model.used(grant.number_id) < size, "a number over its channels"
        assert "all" not in self.model.stops
        assert f"m/{newest.flow.merchant_id}" not in self.model.stops
        current = [
            g for g in self.model.held.values() if (g.lead_id, g.version) == (grant.lead_id, grant.version)
        ]
        assert current == [], "a lead granted twice"

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

    @rule(grant=grants, how=st.sampled_from([Return.AGAIN, Return.FORGET]))
    def give_back(self, grant: Grant, how: Return) -> None:
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

    @rule(merchant=st.sampled_from(MERCHANTS), cap=st.none() | st.integers(0, 2))
    def limit(self, merchant: str, cap: int | None) -> None:
        self.model.caps.pop(f"m/{merchant}", None)
        if cap is not None:
            self.model.caps[f"m/{merchant}"] = cap
        self.configure()

    @rule(subject=st.sampled_from(["all", "m/a", "m/b"]))
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
        flows = [Flow(pool, "r", merchant) for pool in POOLS for merchant in MERCHANTS]
        # A lead that is given back or has moved may stand beside a full flow until the flow is served.
        assert max(self.do(schedule.sizes(self.bus, flows))) <= CAP + 24

    @invariant()
    def nothing_far_is_here(self) -> None:
        known = set(self.do(self.bus.read(self.bus.client.hkeys(f"{self.bus.memory}leads"))))
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
