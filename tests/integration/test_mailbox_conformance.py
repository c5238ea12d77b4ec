"""The model's steps are the code's: every step from every state of the model, taken on Postgres by the code itself.

The exploration in `tests/unit/test_mailbox_model.py` proves the model. Here its every transition is walked, and every
wait of one session for another. That the walks would notice is shown by walking through code that was spoilt.
"""

from collections.abc import AsyncIterator
from operator import attrgetter

import pytest

from tests.support.mailbox.model import Model, explore
from tests.support.mailbox.walk import EFFECTS, Walker, cover, waits
from tests.support.mailbox.world import MailboxWorld, mailbox_world
from trunkline.store import mailboxes


async def walk_all(world: MailboxWorld, model: Model, *, copies: int) -> None:
    for number, walk in enumerate(cover(model, explore(model))):
        kind = f"walk {'-'.join(model.names)} {number}"
        async with Walker(world, model, kind, copies=copies) as walker:
            for edge in walk:
                await walker.take(edge)


async def wait_all(world: MailboxWorld, model: Model, *, copies: int) -> None:
    for number, (way, freeing, taking) in enumerate(waits(model, explore(model))):
        async with Walker(world, model, f"wait {number}", copies=copies) as walker:
            await walker.go(way)
            await walker.wait_for(freeing, taking)


@pytest.fixture
async def world(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[MailboxWorld]:
    async with mailbox_world(database_url, redis_url, key_prefix) as world:
        await world.value(EFFECTS)
        yield world


@pytest.mark.parametrize(("names", "copies"), [("xx", 1), ("xx", 2), ("xx", 3), ("xy", 1)])
async def test_every_step_of_the_model_is_a_step_of_the_code(
    world: MailboxWorld, names: str, copies: int
) -> None:
    await walk_all(world, Model(names=tuple(names), crashes=1), copies=copies)


@pytest.mark.parametrize("copies", [1, 2, 3])
async def test_a_step_that_waited_for_a_mailboxs_lock_sees_its_current_state(
    world: MailboxWorld, copies: int
) -> None:
    await wait_all(world, Model(names=("x", "y"), crashes=0), copies=copies)


# What is taken out of the code, and from where: one of its queries, or one of the functions of the schema.
SPOILT = {
    "completion does not compare the fence": ("mailbox_complete", " AND c.fence = m.fence", ""),
    "completion looks at the events instead of the counter": (
        "mailbox_complete",
        "WHEN m.appended = ours.handled THEN",
        "WHEN NOT EXISTS (SELECT FROM mailbox_events AS e WHERE e.mailbox_id = m.id AND e.seq > ours.handled) THEN",
    ),
    "completion marks every event": ("mailbox_complete", " AND p.seq <= ours.handled", ""),
    "completion marks none": ("mailbox_complete", "WHERE e.ctid = ANY", "WHERE false AND e.ctid = ANY"),
    "a failure does not compare the fence": ("_SQL.fail", " AND fence = $3", " AND $3::bigint IS NOT NULL"),
    "an append counts only in an idle mailbox": (
        "mailbox_append",
        "AND added.amount > 0",
        "AND added.amount > 0 AND m.processing_status = 'idle'",
    ),
    "a doubled event counts": (
        "mailbox_append",
        "amounts[known_box] := amounts[known_box] - 1;",
        "amounts[known_box] := amounts[known_box];",
    ),
    "an append does not queue": (
        "mailbox_append",
        "CASE WHEN m.processing_status = 'idle' THEN 'queued' ELSE m.processing_status END",
        "m.processing_status",
    ),
    "an append counts before it has the lock": ("mailbox_lock", "FOR NO KEY UPDATE OF m", ""),
    "a claim takes only what is queued": (
        "mailbox_claim",
        "WHERE kind = in_kind AND claimable_at",
        "WHERE kind = in_kind AND processing_status = 'queued' AND claimable_at",
    ),
    "a claim does not ask for the lease": (
        "mailbox_claim",
        "WHERE kind = in_kind AND claimable_at <= statement_timestamp()",
        "WHERE kind = in_kind AND claimable_at IS NOT NULL",
    ),
    "a claim keeps the fence": ("mailbox_claim", "fence = random(1, 9223372036854775807)", "fence = 1"),
    "a claim by names takes only what is queued": (
        "mailbox_claim",
        "AND coalesce(claimable_at",
        "AND processing_status = 'queued' AND coalesce(claimable_at",
    ),
    "a claim by names does not ask for the lease": (
        "mailbox_claim",
        "coalesce(claimable_at, 'infinity') <= statement_timestamp()",
        "claimable_at IS NOT NULL",
    ),
    "a claim by name takes only what is queued": (
        "mailbox_claim_one",
        "AND key = in_key AND claimable_at",
        "AND key = in_key AND processing_status = 'queued' AND claimable_at",
    ),
    "a claim by name does not ask for the lease": (
        "mailbox_claim_one",
        "AND claimable_at <= statement_timestamp()",
        "AND claimable_at IS NOT NULL",
    ),
    "a claim by name keeps the fence": (
        "mailbox_claim_one",
        "fence = random(1, 9223372036854775807)",
        "fence = 1",
    ),
}
# The ways of a batch and of the sweep; the others are walked when everything comes alone.
OF_MANY = ("mailbox_append", "mailbox_lock", "mailbox_claim")


@pytest.mark.parametrize("name", SPOILT)
async def test_the_model_walk_fails_when(
    world: MailboxWorld, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    await spoil(world, monkeypatch, *SPOILT[name])
    with pytest.raises(Exception):  # noqa: B017, PT011  # a comparison, a claim that is not there, an index: anything
        await walk_some(world, copies=3 if "names" in name else 2 if SPOILT[name][0] in OF_MANY else 1)


@pytest.mark.parametrize("copies", [1, 2, 3])
async def test_the_model_walk_passes_on_unchanged_code(world: MailboxWorld, copies: int) -> None:
    await walk_some(world, copies=copies)


async def walk_some(world: MailboxWorld, *, copies: int) -> None:
    await walk_all(world, Model(names=("x", "x"), crashes=0), copies=copies)
    await wait_all(world, Model(names=("x", "y"), crashes=0), copies=copies)
    await walk_all(world, Model(names=("x", "y"), crashes=0), copies=copies)


async def spoil(world: MailboxWorld, monkeypatch: pytest.MonkeyPatch, what: str, old: str, new: str) -> None:
    if what.startswith("_"):
        text = attrgetter(what)(mailboxes)
        assert old in text
        monkeypatch.setattr(f"{mailboxes.__name__}.{what}", text.replace(old, new))
        return
    text = await world.value("SELECT pg_get_functiondef($1::regproc)", what)
    assert old in text
    await world.value(text.replace(old, new))
