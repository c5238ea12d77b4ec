"""Without Valkey: whose turn it is, where the next ask goes on, and how much one ask reads."""

from collections.abc import AsyncIterator, Sequence
from uuid import UUID

import pytest

from tests.support.dispatch.dialing import Dialing, open_dialing
from tests.support.dispatch.stage import Stage, open_stage
from tests.support.store.reading import rows_read
from trunkline.bus import schedule as bus_schedule
from trunkline.dispatch import dialer, fallback
from trunkline.dispatch.fallback import PoolWalk, PostgresFallback, Skips
from trunkline.errors import BusUnavailable
from trunkline.model import Blocks, Flow, Grant, Refusal, RefusalReason, new_id
from trunkline.store.database import Connection

EVERYBODY = Skips()
# Postgres plans a statement anew five times, then it keeps a plan.
TIMES = 7
# An ask for five that finds them at once looks at 64 numbers and 64 flows, with a few index entries for each.
FEW = 400
MANY = 3000


@pytest.fixture
async def dialing(database_url: str) -> AsyncIterator[Dialing]:
    async with open_dialing(database_url) as dialing:
        yield dialing


@pytest.fixture
async def stage(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Stage]:
    async with open_stage(database_url, redis_url, key_prefix) as stage:
        yield stage


async def ask(dialing: Dialing, walk: PoolWalk, limit: int) -> list[tuple[Grant, Flow]]:
    async with dialing.database.transaction() as tx:
        return await walk.grants(tx, limit, EVERYBODY)


async def called(dialing: Dialing, walk: PoolWalk, limit: int) -> list[Flow]:
    """The flows of those who were picked; they are called, and their calls are over at once."""
    found = await ask(dialing, walk, limit)
    await dialing.run(
        "UPDATE leads SET status = 'PROCESSING' WHERE id = ANY($1)", [grant.lead_id for grant, _ in found]
    )
    return [flow for _, flow in found]


async def add_pool(dialing: Dialing, pool: str, *, numbers: int = 1, max_channels: int = 10) -> list[UUID]:
    await dialing.run("INSERT INTO pools (id, reseller_id, name) VALUES ($1, 'r', $1)", pool)
    added = [await dialing.add_number(max_channels=max_channels) for _ in range(numbers)]
    await dialing.run("UPDATE numbers SET pool_id = $1 WHERE id = ANY($2)", pool, added)
    return added


async def add_flows(
    dialing: Dialing, count: int, *, leads: int = 1, pool: str = "p", due_in_s: float = -60
) -> None:
    for _ in range(count):
        ids = await dialing.leads(leads, campaign_id=new_id(), due_in_s=due_in_s)
        await dialing.run("UPDATE leads SET pool_id = $1 WHERE id = ANY($2)", pool, ids)


def look_at_few(monkeypatch: pytest.MonkeyPatch, *, each: int = 2, looked: int = 4) -> None:
    monkeypatch.setattr(fallback, "POOLS_FIRST", 2)
    monkeypatch.setattr(fallback, "POOLS_MAX", 2)
    monkeypatch.setattr(fallback, "EACH_MIN", each)
    monkeypatch.setattr(fallback, "EACH_MAX", each)
    monkeypatch.setattr(fallback, "ROWS_READ_MAX", looked)


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 12])
async def test_each_flow_is_granted_one_lead_before_any_gets_its_second(dialing: Dialing, limit: int) -> None:
    await add_pool(dialing, "q")
    await add_flows(dialing, 3, leads=3)
    await add_flows(dialing, 1, leads=3, pool="q")
    walk, flows = PoolWalk(), list[Flow]()
    while picked := await called(dialing, walk, limit):
        assert len(picked) == min(limit, 12 - len(flows)), "and an ask takes all that it may"
        flows += picked
    assert len(flows) == 12
    for turn in range(0, 12, 4):
        assert len(set(flows[turn : turn + 4])) == 4


async def test_the_walk_grants_a_flows_oldest_lead_first_and_names_its_merchant(dialing: Dialing) -> None:
    await dialing.lead(due_in_s=-10)
    oldest = await dialing.lead(due_in_s=-20)
    ((grant, flow),) = await ask(dialing, PoolWalk(), 1)
    assert (grant.lead_id, grant.merchant_id, flow) == (oldest, "m", Flow("p", "r", "m"))


async def test_the_walk_picks_no_lead_and_no_channel_twice(dialing: Dialing) -> None:
    await dialing.leads(60)
    found = [grant for grant, _ in await ask(dialing, PoolWalk(), 60)]
    assert len({grant.lead_id for grant in found}) == 50, "the number has fifty channels"
    assert {grant.channel_no for grant in found} == set(range(1, 51))


async def test_a_pool_that_had_no_channel_continues_with_its_next_flow(
    dialing: Dialing,
) -> None:
    """Its one channel is free now and then. Were its first flow always the first, it would have every one of them."""
    await dialing.run("UPDATE numbers SET max_channels = 1 WHERE id = $1", dialing.number)
    await add_pool(dialing, "q")
    await add_flows(dialing, 3, leads=2)
    await add_flows(dialing, 1, leads=50, pool="q")
    walk, flows = PoolWalk(), list[Flow]()
    for _ in range(6):
        picked = await called(dialing, walk, 3)
        flows += [flow for flow in picked if flow.pool_id == "p"]
        assert {flow.pool_id for flow in picked} == {"p", "q"}, (
            "and whoever has a channel does not wait for it"
        )
    assert len(flows) == 6
    assert len(set(flows[:3])) == 3


async def test_the_next_walk_continues_where_the_last_one_stopped(
    dialing: Dialing, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_at_few(monkeypatch)
    await add_flows(dialing, 9, due_in_s=600)
    await add_pool(dialing, "q")
    await add_flows(dialing, 1, pool="q")
    walk, asks = PoolWalk(), 1
    while not await called(dialing, walk, 5):
        asks += 1
        assert asks < 20
    assert asks > 2, "one ask looks at a few flows"


async def test_the_next_walk_continues_with_the_numbers_not_searched_yet(
    dialing: Dialing, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_at_few(monkeypatch)
    await dialing.run("UPDATE numbers SET status = 'disabled'")
    full = [await dialing.add_number(max_channels=1) for _ in range(9)]
    for number in full:
        await dialing.attempt(f"+1202555{full.index(number):04d}", state="answered", number=number, channel=1)
    free = await dialing.add_number(max_channels=1)
    await dialing.lead()
    walk, asks = PoolWalk(), 1
    while not (found := await ask(dialing, walk, 5)):
        asks += 1
        assert asks < 20
    assert [grant.number_id for grant, _ in found] == [free]
    assert asks > 1, "one ask looks at a few numbers"


async def test_the_walk_spreads_calls_over_the_numbers_of_a_pool(dialing: Dialing) -> None:
    numbers = {dialing.number, await dialing.add_number(), await dialing.add_number()}
    await dialing.leads(9)
    walk = PoolWalk()
    found = [grant for _ in range(3) for grant, _ in await ask(dialing, walk, 2)]
    assert {grant.number_id for grant in found[:3]} == {grant.number_id for grant in found[3:]} == numbers
    assert {grant.channel_no for grant, _ in await ask(dialing, walk, 3)} == {1}, (
        "none has its second before the others"
    )


async def test_the_walk_finds_the_one_free_channel_of_many(dialing: Dialing) -> None:
    await dialing.run("UPDATE numbers SET max_channels = 200")
    await hold(dialing, range(1, 201), but=150)
    await dialing.lead()
    walk, found = PoolWalk(), list[tuple[Grant, Flow]]()
    for _ in range(200):
        found += await ask(dialing, walk, 1)
    assert found
    assert {grant.channel_no for grant, _ in found} == {150}


async def hold(dialing: Dialing, channels: range, *, but: int) -> None:
    await dialing.run(
        "INSERT INTO attempts (id, direction, attempt_no, reseller_id, merchant_id, number_id, channel_no, carrier,"
        " account, to_phone, from_phone, dialer, state)"
        " SELECT gen_random_uuid(), 'inbound', 1, 'r', 'm', $1, no, 'twilio', 'default', '+1', '+2', 'x', 'answered'"
        " FROM unnest($2::int[]) AS line (no) WHERE no <> $3",
        dialing.number,
        list(channels),
        but,
    )


async def test_a_lead_behind_a_refused_one_of_its_flow_is_picked(
    dialing: Dialing, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    refused = await dialing.lead(due_in_s=-60)
    behind = await dialing.lead()
    asking, picked = PostgresFallback(), list[UUID]()
    for _ in range(200):
        grants = await asking.grants(dialing.database, 1) or []
        now_s += 0.5
        for grant in grants:
            picked.append(grant.lead_id)
            if grant.lead_id == refused:
                asking.defer({grant: Refusal(RefusalReason.PERSON, Blocks.PERSON)})
        if behind in picked:
            return
    pytest.fail("it never had one")


@pytest.mark.parametrize("analyzed", [False, True])
@pytest.mark.parametrize("table", ["leads", "numbers", "attempts", "controls"])
async def test_a_walk_planned_on_empty_tables_reads_few_rows_of_full_ones(
    dialing: Dialing, table: str, *, analyzed: bool
) -> None:
    await dialing.lead()
    if analyzed:
        await dialing.run("ANALYZE")
    async with dialing.database.warm_pool.acquire() as connection:
        skips = Skips(leads=[new_id()], numbers=[new_id()], accounts_of=[new_id()])
        for _ in range(TIMES):
            async with connection.transaction():
                assert await PoolWalk().grants(connection, 5, skips)
        await fill(connection)
        async with connection.transaction():
            before = await rows_read(connection, table)
            assert len(await PoolWalk().grants(connection, 5, skips)) == 5
            assert await rows_read(connection, table) - before < FEW


@pytest.mark.parametrize("how", ["due", "stopped", "put off", "set aside"])
async def test_the_walk_reads_few_rows_of_a_flow_with_many_leads(dialing: Dialing, how: str) -> None:
    lead = await dialing.lead(due_in_s=600 if how == "put off" else -60)
    if how == "stopped":
        await dialing.run(
            "INSERT INTO controls (scope, subject, set_by, reason, changed_by, ramp_s)"
            " VALUES ('merchant', 'm', 'platform', 'test', 'test', 0)"
        )
    async with dialing.database.warm_pool.acquire() as connection:
        await copy_leads(connection, "'m'", "NULL")
        skips = Skips(leads=[lead]) if how == "set aside" else EVERYBODY
        async with connection.transaction():
            before = await rows_read(connection, "leads")
            found = await PoolWalk().grants(connection, 1, skips)
            assert await rows_read(connection, "leads") - before < 40
    assert bool(found) == (how in ("due", "set aside"))
    assert lead not in [grant.lead_id for grant, _ in found if how == "set aside"]


@pytest.mark.parametrize("held", [False, True])
async def test_a_walk_that_finds_nothing_reads_a_bounded_number_of_rows(
    dialing: Dialing, *, held: bool
) -> None:
    """Everything is put off or held: that is when an ask looks longest."""
    await dialing.lead(due_in_s=-60 if held else 600)
    async with dialing.database.warm_pool.acquire() as connection:
        await fill(connection, numbers=MANY)
        if held:
            await connection.execute("UPDATE attempts SET holds_channel = true, next_check_at = now()")
            await connection.execute("UPDATE numbers SET max_channels = 1")
            await dialing.attempt("+12025550100", state="answered", channel=1)
        async with connection.transaction():
            before = [await rows_read(connection, table) for table in ("leads", "numbers", "attempts")]
            assert await PoolWalk().grants(connection, 5, EVERYBODY) == []
            after = [await rows_read(connection, table) for table in ("leads", "numbers", "attempts")]
    assert sum(after) - sum(before) < 10 * fallback.ROWS_READ_MAX < 5 * MANY


async def fill(connection: Connection, numbers: int = 100) -> None:
    """Other leads, each a flow of its own, numbers with a call each, so many of them in the pool of the leads, and
    stops. Nothing tells the planner of them."""
    await copy_leads(connection, "'m'", "gen_random_uuid()")
    await connection.execute("INSERT INTO pools (id, reseller_id, name) VALUES ('other', 'r', 'other')")
    await connection.execute(
        "INSERT INTO numbers (id, e164, pool_id, carrier, account, max_channels)"
        " SELECT gen_random_uuid(), '+1303' || (2000000 + n), CASE WHEN n <= $2 THEN 'p' ELSE 'other' END,"
        " 'twilio', 'default', 10 FROM generate_series(1, $1::int) AS n",
        MANY,
        numbers,
    )
    await connection.execute(
        "INSERT INTO attempts (id, direction, attempt_no, reseller_id, merchant_id, number_id, channel_no, carrier,"
        " account, to_phone, from_phone, dialer, state)"
        " SELECT gen_random_uuid(), 'inbound', 1, 'r', 'm', id, 1, 'twilio', 'default', '+1', e164, 'x', 'answered'"
        " FROM numbers WHERE e164 LIKE '+1303%'"
    )
    await connection.execute(
        "INSERT INTO controls (scope, subject, set_by, reason, changed_by, ramp_s)"
        " SELECT scope, n::text, 'platform', 'test', 'test', 0"
        " FROM generate_series(1, $1::int) AS n,"
        " unnest('{merchant,campaign,number,reseller,carrier}'::text[]) AS scope",
        MANY // 5,
    )


async def copy_leads(connection: Connection, merchant: str, campaign: str) -> None:
    await connection.execute(
        "INSERT INTO leads SELECT (jsonb_populate_record(l, jsonb_build_object('id', gen_random_uuid(),"
        f" 'request_id', gen_random_uuid(), 'merchant_id', {merchant}, 'campaign_id', {campaign}))).*"
        " FROM leads AS l CROSS JOIN generate_series(1, $1::int)",
        MANY,
    )


async def test_one_process_runs_the_fallback_and_another_takes_over_its_lease(
    dialing: Dialing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fallback, "LEASE_S", 3600.0)
    await dialing.leads(3)
    first, second = PostgresFallback(identity="a"), PostgresFallback(identity="b")
    assert await first.grants(dialing.database, 1)
    assert await second.grants(dialing.database, 1) is None
    assert await first.grants(dialing.database, 1), "it has renewed its lease"
    await dialing.run("UPDATE leaders SET expires_at = clock_timestamp()")
    assert await second.grants(dialing.database, 1)
    assert await first.grants(dialing.database, 1) is None


async def test_only_the_dialer_with_the_fallback_lease_dials_without_valkey(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fallback, "LEASE_S", 3600.0)
    await stage.dialing.leads(4)
    tried = without_valkey(monkeypatch)
    first, second = (stage.another_dialer(fallback_starts_per_s=1) for _ in range(2))
    assert [await each.run_once() for each in (first, second, first)] == [1, 0, 1]
    await stage.dialing.run("UPDATE leaders SET expires_at = clock_timestamp()")
    assert [await each.run_once() for each in (second, first)] == [1, 0]
    assert tried


@pytest.mark.parametrize(("again_s", "times"), [(3600.0, 1), (0.0, 3)])
async def test_the_dialer_retries_an_unreachable_valkey_only_after_a_pause(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, again_s: float, times: int
) -> None:
    monkeypatch.setattr(dialer, "VALKEY_RETRY_S", again_s)
    tried = without_valkey(monkeypatch)
    for _ in range(3):
        await stage.dialing.lead()
        assert await stage.dialer.run_once() == 1
    assert len(tried) == times


def without_valkey(monkeypatch: pytest.MonkeyPatch) -> Sequence[None]:
    """Each try to match, which fails."""
    tried: list[None] = []

    async def match(*args: object, **more: object) -> None:
        tried.append(None)
        raise BusUnavailable("it is away")

    monkeypatch.setattr(bus_schedule, "match", match)
    return tried
