"""The overview shows for what each queue waits, apart from how late calls are."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.support.api.world import ADMIN_KEY, ApiWorld, expect, open_api
from tests.support.console.world import open_console
from trunkline.model import new_id
from trunkline.store import cooldowns, live
from trunkline.store.cooldowns import CarrierRefused, Subject


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[ApiWorld]:
    async with open_api(database_url) as world:
        yield world


async def queue(world: ApiWorld) -> dict[str, Any]:
    (found,) = expect(await world.tenant("a1").get("/api/v1/overview"), 200)["queues"]
    return {"waits_for": found["waits_for"], "waits_until": found["waits_until"]}


async def test_the_overview_shows_for_what_a_queue_waits_and_until_when(world: ApiWorld) -> None:
    await world.make_lead("a1")

    async def run(sql: str, *args: object) -> None:
        async with world.database.connection() as conn:
            await conn.execute(sql, *args)

    await run("UPDATE leads SET due_at = now() - interval '1 minute' WHERE merchant_id = 'a1'")
    assert await queue(world) == {"waits_for": "turn", "waits_until": None}
    ends_at = datetime(2031, 5, 1, 9, 30, tzinfo=UTC)
    await run(
        "INSERT INTO controls (scope, subject, set_by, reason, changed_by, ends_at, ramp_s)"
        " VALUES ('merchant', 'a1', 'platform', 'x', 'x', $1, 0)",
        ends_at,
    )
    assert await queue(world) == {"waits_for": "stopped", "waits_until": "2031-05-01T09:30:00Z"}
    await run("DELETE FROM controls")
    await run(
        "INSERT INTO decisions (lead_id, reason, merchant_id, subject, until)"
        " SELECT id, 'limit', 'a1', 'attempts_per_day', $1 FROM leads WHERE merchant_id = 'a1'",
        ends_at,
    )
    assert await queue(world) == {"waits_for": "limit", "waits_until": "2031-05-01T09:30:00Z"}
    await run("UPDATE numbers SET status = 'disabled'")
    assert (await queue(world))["waits_for"] == "no_number"
    await run("UPDATE leads SET due_at = now() + interval '1 minute' WHERE merchant_id = 'a1'")
    assert (await queue(world))["waits_for"] is None, "nothing is due"


# How a cooldown ends


async def due(world: ApiWorld, many: int = 1) -> list[str]:
    leads = [await world.make_lead("a1", f"r{n}", phone=f"+1415555{3000 + n}") for n in range(many)]
    await run(world, "UPDATE leads SET due_at = now() - interval '1 minute' WHERE merchant_id = 'a1'")
    return [lead["id"] for lead in leads]


async def run(world: ApiWorld, sql: str, *args: object) -> None:
    async with world.database.connection() as conn:
        await conn.execute(sql, *args)


async def cool(world: ApiWorld, subject: Subject, wait_s: float) -> datetime:
    """When the cooldown that begins lets the next call be tried."""
    async with world.database.connection() as conn:
        refused = CarrierRefused(subject, ("twilio", "default"), "20003", "wrong credentials")
        await cooldowns.begin(conn, [refused], first_wait_s=wait_s)
        opens_at: datetime = await conn.fetchval(
            "SELECT opens_at FROM cooldowns WHERE scope = $1 AND subject = $2", subject.scope, subject.name
        )
    return opens_at


async def test_a_queue_that_waits_for_a_cooldown_shows_its_next_probe(world: ApiWorld) -> None:
    await due(world)
    number = world.numbers["a1-pool"]
    later = await cool(world, Subject("number", str(number)), 300)
    assert await cool(world, Subject("account", "twilio/default"), 60) < later
    shown = await queue(world)
    assert shown["waits_for"] == "cooldown"
    assert datetime.fromisoformat(shown["waits_until"]) == later, "both must let it pass"
    other = new_id()
    await run(
        world,
        "INSERT INTO numbers (id, e164, pool_id, carrier, account, max_channels)"
        " VALUES ($1, '+14155550177', 'a1-pool', 'twilio', 'other', 2)",
        other,
    )
    assert (await queue(world))["waits_for"] == "turn", "the other account takes calls"
    async with world.database.connection() as conn:
        refused = CarrierRefused(Subject("number", str(other)), ("twilio", "other"), "21210", "not ours")
        await cooldowns.begin(conn, [refused], first_wait_s=30)
    sooner = datetime.fromisoformat((await queue(world))["waits_until"])
    assert sooner < later, "the first of its numbers counts"
    await run(world, "UPDATE cooldowns SET opens_at = now() - interval '1 second'")
    assert await queue(world) == {"waits_for": "cooldown", "waits_until": None}, "a probe is under way"


# An estimate for channels

_ATTEMPT = """
INSERT INTO attempts (id, lead_id, attempt_no, reseller_id, merchant_id, number_id, channel_no, carrier, account,
                      to_phone, from_phone, dialer, state, holds_channel, next_check_at, send_at, ended_at)
SELECT $1, $2, $3, 'a', $4, $5, $6, 'twilio', 'default', '+14155559' || $6::int, '+1', 'd',
       CASE WHEN $7 THEN 'answered' ELSE 'ended' END, $7, CASE WHEN $7 THEN now() END,
       clock_timestamp() - make_interval(secs => $8),
       CASE WHEN NOT $7 THEN clock_timestamp() - make_interval(secs => $8) END
"""


async def call(
    world: ApiWorld, lead: str, nth: int, *, is_live: bool = False, ago_s: float = 0, merchant: str = "a1"
) -> None:
    number = world.numbers["a1-pool"]
    await run(world, _ATTEMPT, new_id(), UUID(lead), nth, merchant, number, nth, is_live, ago_s)


async def shown_queue(world: ApiWorld) -> dict[str, Any]:
    (found,) = expect(await world.tenant("a1").get("/api/v1/overview"), 200)["queues"]
    return dict(found)


async def test_a_queue_that_waits_for_channels_shows_an_estimate_by_its_pace(world: ApiWorld) -> None:
    leads = await due(world, 12)
    await run(world, "UPDATE numbers SET max_channels = 1")
    busy = [UUID(lead) for lead in leads[:2]]
    await run(world, "UPDATE leads SET status = 'PROCESSING' WHERE id = ANY($1)", busy)
    await call(world, leads[0], 1, is_live=True)
    alone = await shown_queue(world)
    assert (alone["waits_for"], alone["waits_until"]) == ("channels", None), "none has ended yet"
    assert alone["is_until_estimated"] is False
    for nth, ago_s in ((2, 3000.0), (3, 300.0), (4, 200.0), (5, 10.0), (6, 5.0)):
        await call(world, leads[1], nth, ago_s=ago_s)
    await call(world, leads[1], 7, ago_s=20, merchant="a2")
    shown = await shown_queue(world)
    assert (shown["waits_for"], shown["due"], shown["is_until_estimated"]) == ("channels", 10, True)
    # Four of its own calls have ended within ten minutes: ten leads take 25 minutes.
    expected = world.clock.now() + timedelta(minutes=25)
    assert abs(datetime.fromisoformat(shown["waits_until"]) - expected) < timedelta(seconds=1)
    page = expect(await world.admin.get("/api/v1/overview"), 200)["queues"]
    assert [each["waits_until"] for each in page if each["merchant_id"] == "a1"] == [shown["waits_until"]]


async def test_the_pace_of_a_new_queue_counts_from_its_first_call(world: ApiWorld) -> None:
    leads = await due(world, 2)
    for nth, ago_s in ((1, 60.0), (2, 30.0)):
        await call(world, leads[0], nth, ago_s=ago_s)
    name = ("a1-pool", "a1", None)
    async with world.database.connection() as conn:
        pace = (await live.paces(conn, [name]))[name]
    assert pace.ended == 2
    assert 60 <= pace.over_s < live.PACE_S
    async with world.database.connection() as conn:
        assert await live.paces(conn, [("a2-pool", "a1", None), ("a1-pool", "a2", None)]) == {}


async def test_a_queue_longer_than_the_count_limit_has_no_estimate(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    leads = await due(world, 3)
    await run(world, "UPDATE numbers SET max_channels = 1")
    await call(world, leads[0], 1, is_live=True)
    await call(world, leads[1], 2, ago_s=60)
    assert (await shown_queue(world))["is_until_estimated"] is True
    monkeypatch.setattr(live, "COUNT_MAX", 3)
    shown = await shown_queue(world)
    assert (shown["due"], shown["waits_until"], shown["is_until_estimated"]) == (3, None, False)


async def test_the_console_marks_an_estimate(database_url: str) -> None:
    async with open_console(database_url) as console:
        leads = await due(console.api, 3)
        await run(console.api, "UPDATE numbers SET max_channels = 1")
        await call(console.api, leads[0], 1, is_live=True)
        visitor = await console.visitor(ADMIN_KEY)
        before = (await visitor.open("/console")).body.decode()
        await call(console.api, leads[1], 2, ago_s=60)
        after = (await visitor.open("/console")).body.decode()
    assert "until about" not in before
    assert "until about <time" in after
