"""Who proposes the slots of dials: Valkey while it can be believed, Postgres otherwise."""

from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import UUID

import pytest

from tests.support.bus.router_keys import RouterKeys
from tests.support.dispatch.dialing import Dialing, open_dialing
from trunkline.bus.connection import connect
from trunkline.bus.keys import Keys
from trunkline.bus.router import RouterBus
from trunkline.bus.scripts import Script, Word
from trunkline.errors import BusUnavailable
from trunkline.model import FreeSlots, Grant, Slot, new_id
from trunkline.router.config import RouterConfig
from trunkline.router.slots import SlotProposer
from trunkline.store.allocations import assign


class NoValkey:
    async def run(self, lua: Script, keys: Sequence[str], args: Sequence[Word] = ()) -> Any:
        raise BusUnavailable("away")

    def wake_dialers(self) -> None: ...


@pytest.fixture
async def dialing(database_url: str) -> AsyncIterator[Dialing]:
    async with open_dialing(database_url) as dialing:
        yield dialing


@pytest.fixture
def proposer(dialing: Dialing) -> SlotProposer:
    return SlotProposer(RouterBus(NoValkey(), RouterKeys("voice")), dialing.database, RouterConfig())


def grants(*merchants: str) -> list[Grant]:
    return [Grant(new_id(), new_id(), 1, new_id(), 1, 0, merchant_id=merchant) for merchant in merchants]


async def pods(proposer: SlotProposer, *merchants: str) -> list[str | None]:
    wanted = grants(*merchants)
    found = await proposer.propose(wanted)
    return [found[grant.attempt_id].pod if grant.attempt_id in found else None for grant in wanted]


async def test_without_valkey_postgres_picks_different_slots_for_a_batch(
    dialing: Dialing, proposer: SlotProposer
) -> None:
    for n in range(3):
        await dialing.pod(f"va-{n}")
    found = await pods(proposer, "m", "m", "m", "m")
    assert sorted(pod for pod in found if pod) == ["va-0", "va-1", "va-2"]
    assert found[3] is None


async def test_without_valkey_the_agent_room_is_unknown(proposer: SlotProposer) -> None:
    assert await proposer.free_slots() is None


async def test_slots_of_a_merchants_own_tier_are_proposed_first(
    dialing: Dialing, proposer: SlotProposer
) -> None:
    await dialing.pod("gold-0", tier="gold")
    await dialing.pod("va-0")
    await dialing.run(
        """INSERT INTO router_merchants (merchant_id, config) VALUES ('rich', '{"tier": "gold"}')"""
    )
    assert await pods(proposer, "m", "rich", "m") == ["va-0", "gold-0", None]
    assert await pods(proposer, "rich", "rich") == ["gold-0", "va-0"]


async def test_a_projection_that_is_not_rebuilt_is_not_used(
    dialing: Dialing, redis_url: str, key_prefix: str
) -> None:
    bus = connect(redis_url, Keys(prefix=key_prefix))
    try:
        proposer = SlotProposer(RouterBus(bus, RouterKeys(key_prefix)), dialing.database, RouterConfig())
        await dialing.pod("va-0")
        assert await proposer.free_slots() is None
        assert await pods(proposer, "m") == ["va-0"]
        await proposer.give_back([new_id()])
        await proposer.conflicted([Slot("va-0", 1, 1)])
    finally:
        await bus.close()


def slots(*names: str) -> list[Slot]:
    return [Slot(name, 1, 1) for name in names]


@pytest.mark.parametrize(
    ("wants", "free", "given"),
    [
        ([("a", ["standard"])], {"standard": ["s0"]}, ["s0"]),
        ([("a", ["gold", "standard"]), ("b", ["standard"])], {"gold": ["g0"], "standard": ["s0"]}, ["g0", "s0"]),
        ([("a", ["gold", "basic"]), ("b", ["gold", "basic"])], {"gold": ["g0"], "basic": ["s0"]}, ["g0", "s0"]),
        ([("a", ["standard"]), ("b", ["standard"])], {"standard": ["s0"]}, ["s0", None]),
        ([("a", ["standard"])], {}, [None]),
    ],
)  # fmt: skip
def test_each_dial_is_proposed_a_slot_of_its_first_tier_with_one(
    wants: list[tuple[str, list[str]]], free: dict[str, list[str]], given: list[str | None]
) -> None:
    ids: list[UUID] = [new_id() for _ in wants]
    found = assign(
        [(each, tiers) for each, (_, tiers) in zip(ids, wants, strict=True)],
        {tier: slots(*names) for tier, names in free.items()},
    )
    assert [found[each].pod if each in found else None for each in ids] == given


def test_agent_room_is_none_when_no_tier_has_a_free_agent() -> None:
    assert FreeSlots(0, {"gold": 0}).is_none
    assert not FreeSlots(0, {"gold": 1}).is_none
    assert not FreeSlots(1, {}).is_none
